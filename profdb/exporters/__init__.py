"""Writers of other tools' measurement formats. Only measured times leave the house: these formats have
no place to say that a number was modelled."""
