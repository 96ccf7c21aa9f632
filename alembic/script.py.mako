"""${message}.

MySQL and MariaDB commit each DDL statement by itself, so use the guarded helpers of app.db.ddl. Expand first; what release
N-1 still uses goes one release later.
"""

from __future__ import annotations

from app.db import ddl

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "raise NotImplementedError"}


def downgrade() -> None:
    ${downgrades if downgrades else "raise NotImplementedError"}
