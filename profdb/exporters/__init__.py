"""Writers of other tools' measurement formats. Only measured times are written: these formats have
no field that says that a number was modelled."""
