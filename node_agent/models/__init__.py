"""The files of a model card on this machine: fetched, checked by hash, admitted, kept."""
