"""Several real hosts on one machine, with names, addresses, sshd and links of their own; `make rig` builds them."""

from rig.host import Host
from rig.requirements import rig_problem
from rig.rig import Rig

__all__ = ["Host", "Rig", "rig_problem"]
