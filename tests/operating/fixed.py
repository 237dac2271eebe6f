"""An application that says itself which database it works on."""

from __future__ import annotations

import os

from shop import Parcel

from akter import Akter

app = Akter(os.environ["FIXED_URL"], actors=[Parcel])
