"""Add the coordinator's tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002_add_the_coordinators_tables"
down_revision = "0001_ledger"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("is_operator", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_table(
        "dispatcher_lease",
        sa.Column("name", sa.String(length=20), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_dispatcher_lease")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("revoked_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_api_keys_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_api_keys_account_id"), ["account_id"], unique=False)

    op.create_table(
        "enrolments",
        sa.Column("code", sa.String(length=9), nullable=False),
        sa.Column("poll_sha256", sa.String(length=64), nullable=False),
        sa.Column("node_id", sa.String(length=69), nullable=False),
        sa.Column("public_key", sa.String(length=43), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column(
            "hardware",
            sa.JSON().with_variant(postgresql.JSONB(), "postgresql"),
            nullable=False,
        ),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_enrolments_account_id")),
        sa.PrimaryKeyConstraint("code", name=op.f("pk_enrolments")),
    )
    with op.batch_alter_table("enrolments", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_enrolments_node_id"), ["node_id"], unique=False)

    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=69), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("public_key", sa.String(length=43), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("state_reason", sa.String(length=40), nullable=True),
        sa.Column("seat", sa.String(length=10), nullable=False),
        sa.Column(
            "hardware",
            sa.JSON().with_variant(postgresql.JSONB(), "postgresql"),
            nullable=False,
        ),
        sa.Column("lent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reserved_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
        sa.Column("revoked_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("reserved_bytes <= lent_bytes", name=op.f("ck_nodes_reserved_within_lent")),
        sa.CheckConstraint("reserved_bytes >= 0", name=op.f("ck_nodes_reserved_not_negative")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_nodes_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        sa.UniqueConstraint("public_key", name=op.f("uq_nodes_public_key")),
    )
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_nodes_account_id"), ["account_id"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("api_key_id", sa.String(length=40), nullable=True),
        sa.Column("parent_id", sa.String(length=40), nullable=True),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("is_async", sa.Boolean(), nullable=False),
        sa.Column("card_id", sa.String(length=64), nullable=False),
        sa.Column("card_revision", sa.String(length=64), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("finish_reason", sa.String(length=20), nullable=True),
        sa.Column("error_code", sa.String(length=40), nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("output_digest", sa.String(length=64), nullable=True),
        sa.Column("hold_id", sa.String(length=36), nullable=True),
        sa.Column("bound_umlx", sa.BigInteger(), nullable=False),
        sa.Column("charge_umlx", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("charge_umlx <= bound_umlx", name=op.f("ck_jobs_charge_within_bound")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_jobs_account_id")),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name=op.f("fk_jobs_api_key_id")),
        sa.ForeignKeyConstraint(["parent_id"], ["jobs.id"], name=op.f("fk_jobs_parent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint(
            "account_id",
            "idempotency_key",
            name=op.f("uq_jobs_account_id_idempotency_key"),
        ),
        sa.UniqueConstraint("hold_id", name=op.f("uq_jobs_hold_id")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_account_created", ["account_id", "created_us"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_parent_id"), ["parent_id"], unique=False)
        batch_op.create_index(
            "ix_jobs_queue",
            ["created_us", "id"],
            unique=False,
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        )

    op.create_table(
        "slots",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("node_id", sa.String(length=69), nullable=False),
        sa.Column("card_id", sa.String(length=64), nullable=False),
        sa.Column("card_revision", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("tokens_max", sa.Integer(), nullable=False),
        sa.Column("live", sa.Integer(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("live <= width", name=op.f("ck_slots_live_within_width")),
        sa.CheckConstraint("live >= 0", name=op.f("ck_slots_live_not_negative")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_slots_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_slots")),
        sa.UniqueConstraint("node_id", "card_revision", name=op.f("uq_slots_node_id_card_revision")),
    )
    with op.batch_alter_table("slots", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_slots_node_id"), ["node_id"], unique=False)

    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.String(length=69), nullable=False),
        sa.Column("slot_id", sa.String(length=40), nullable=True),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=True),
        sa.Column("forecast_ms", sa.BigInteger(), nullable=False),
        sa.Column("delivered_tokens", sa.Integer(), nullable=False),
        sa.Column("share_umlx", sa.BigInteger(), nullable=False),
        sa.Column("node_signature", sa.String(length=100), nullable=True),
        sa.Column("offered_us", sa.BigInteger(), nullable=False),
        sa.Column("accepted_us", sa.BigInteger(), nullable=True),
        sa.Column("first_token_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_attempts_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("job_id", "fence", name=op.f("uq_attempts_job_id_fence")),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempts_node_id"), ["node_id"], unique=False)
        batch_op.create_index(
            "uq_attempts_one_live",
            ["job_id"],
            unique=True,
            sqlite_where=sa.text("state IN ('offered', 'accepted', 'loading', 'prefill', 'decoding')"),
            postgresql_where=sa.text("state IN ('offered', 'accepted', 'loading', 'prefill', 'decoding')"),
        )

    op.create_table(
        "job_events",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=True),
        sa.Column("from_state", sa.String(length=12), nullable=False),
        sa.Column("to_state", sa.String(length=12), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_events")),
    )
    with op.batch_alter_table("job_events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_job_events_job_id"), ["job_id"], unique=False)

    op.create_table(
        "job_payloads",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("part", sa.String(length=10), nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_payloads_job_id")),
        sa.PrimaryKeyConstraint("job_id", "part", name=op.f("pk_job_payloads")),
    )
    with op.batch_alter_table("job_payloads", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_job_payloads_expires_us"), ["expires_us"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("job_payloads", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_job_payloads_expires_us"))

    op.drop_table("job_payloads")
    with op.batch_alter_table("job_events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_job_events_job_id"))

    op.drop_table("job_events")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_attempts_one_live",
            sqlite_where=sa.text("state IN ('offered', 'accepted', 'loading', 'prefill', 'decoding')"),
            postgresql_where=sa.text("state IN ('offered', 'accepted', 'loading', 'prefill', 'decoding')"),
        )
        batch_op.drop_index(batch_op.f("ix_attempts_node_id"))

    op.drop_table("attempts")
    with op.batch_alter_table("slots", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_slots_node_id"))

    op.drop_table("slots")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_jobs_queue",
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        )
        batch_op.drop_index(batch_op.f("ix_jobs_parent_id"))
        batch_op.drop_index("ix_jobs_account_created")

    op.drop_table("jobs")
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_nodes_account_id"))

    op.drop_table("nodes")
    with op.batch_alter_table("enrolments", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_enrolments_node_id"))

    op.drop_table("enrolments")
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_api_keys_account_id"))

    op.drop_table("api_keys")
    op.drop_table("dispatcher_lease")
    op.drop_table("accounts")
