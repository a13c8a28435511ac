"""Measuring what a cluster does, one small file per benchmark; the profile is written by profdb."""
