"""Brings the files of a run from hosts without a shared folder to the launcher's machine while the run goes on."""
