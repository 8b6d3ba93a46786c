"""Named cursors of this cluster: moved, told and forgotten by the heads of an internal topic."""
