"""Seats, budgets, held pay and rate cards; what each job was quoted and each attempt is paid by."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.operations.base import BatchOperations
from sqlalchemy.dialects import postgresql

revision = "0004_seats_budgets_shares"
down_revision = "0003_ledger_tree_and_checkpoints"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "budgets",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("purpose", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=False),
        sa.Column("cap_umlx", sa.BigInteger(), nullable=False),
        sa.Column("valid_from_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("signatures", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("cap_umlx > 0", name=op.f("ck_budgets_cap_positive")),
        sa.CheckConstraint("expires_us > valid_from_us", name=op.f("ck_budgets_ends_after_start")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
    )
    op.create_table(
        "device_health",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("faults", sa.Integer(), nullable=False),
        sa.Column("last_fault", sa.String(length=40), nullable=False),
        sa.Column("last_fault_us", sa.BigInteger(), nullable=False),
        sa.Column("paused_until_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("faults >= 0", name=op.f("ck_device_health_faults_not_negative")),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_device_health")),
    )
    op.create_table(
        "operator_keys",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("public_key", sa.String(length=43), nullable=False),
        sa.Column("added_us", sa.BigInteger(), nullable=False),
        sa.Column("revoked_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_operator_keys")),
        sa.UniqueConstraint("public_key", name=op.f("uq_operator_keys_public_key")),
    )
    op.create_table(
        "rate_cards",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("announced_us", sa.BigInteger(), nullable=False),
        sa.Column("effective_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rate_cards")),
        sa.UniqueConstraint("version", name=op.f("uq_rate_cards_version")),
    )
    with op.batch_alter_table("rate_cards", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rate_cards_effective_us"), ["effective_us"], unique=False)

    op.create_table(
        "budget_draws",
        sa.Column("reference", sa.String(length=200), nullable=False),
        sa.Column("budget_id", sa.String(length=64), nullable=False),
        sa.Column("account", sa.String(length=128), nullable=False),
        sa.Column("amount_umlx", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_umlx > 0", name=op.f("ck_budget_draws_amount_positive")),
        sa.ForeignKeyConstraint(["budget_id"], ["budgets.id"], name=op.f("fk_budget_draws_budget_id")),
        sa.PrimaryKeyConstraint("reference", name=op.f("pk_budget_draws")),
    )
    with op.batch_alter_table("budget_draws", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_budget_draws_budget_id"), ["budget_id"], unique=False)

    op.create_table(
        "vouchers",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("budget_id", sa.String(length=64), nullable=False),
        sa.Column("code_sha256", sa.String(length=64), nullable=False),
        sa.Column("amount_umlx", sa.BigInteger(), nullable=False),
        sa.Column("issued_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("redeemed_us", sa.BigInteger(), nullable=True),
        sa.Column("redeemed_by", sa.String(length=40), nullable=True),
        sa.CheckConstraint("amount_umlx > 0", name=op.f("ck_vouchers_amount_positive")),
        sa.ForeignKeyConstraint(["budget_id"], ["budgets.id"], name=op.f("fk_vouchers_budget_id")),
        sa.ForeignKeyConstraint(["redeemed_by"], ["accounts.id"], name=op.f("fk_vouchers_redeemed_by")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vouchers")),
        sa.UniqueConstraint("code_sha256", name=op.f("uq_vouchers_code_sha256")),
    )
    with op.batch_alter_table("vouchers", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_vouchers_budget_id"), ["budget_id"], unique=False)

    op.create_table(
        "credited_slots",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("slot_start_us", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.String(length=69), nullable=False),
        sa.Column("owner_account_id", sa.String(length=40), nullable=False),
        sa.Column("seat", sa.String(length=10), nullable=False),
        sa.Column("paid_as", sa.String(length=10), nullable=False),
        sa.Column("rate_card_id", sa.String(length=64), nullable=False),
        sa.Column("points_ppm", sa.BigInteger(), nullable=False),
        sa.Column("present_seconds", sa.Integer(), nullable=False),
        sa.Column("busy_seconds", sa.Integer(), nullable=False),
        sa.Column("job_pay_umlx", sa.BigInteger(), nullable=False),
        sa.Column("claim_umlx", sa.BigInteger(), nullable=False),
        sa.Column("amount_umlx", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=20), nullable=True),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_credited_slots_node_id")),
        sa.ForeignKeyConstraint(
            ["owner_account_id"], ["accounts.id"], name=op.f("fk_credited_slots_owner_account_id")
        ),
        sa.PrimaryKeyConstraint("device", "slot_start_us", name=op.f("pk_credited_slots")),
    )
    with op.batch_alter_table("credited_slots", schema=None) as batch_op:
        batch_op.create_index(
            "ix_credited_slots_owner_slot", ["owner_account_id", "slot_start_us"], unique=False
        )

    op.create_table(
        "seat_terms",
        sa.Column("node_id", sa.String(length=69), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.Column("seat", sa.String(length=10), nullable=False),
        sa.Column("until_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "until_us IS NULL OR until_us >= since_us", name=op.f("ck_seat_terms_ends_after_start")
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_seat_terms_node_id")),
        sa.PrimaryKeyConstraint("node_id", "since_us", name=op.f("pk_seat_terms")),
    )
    op.create_table(
        "self_tests",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("node_id", sa.String(length=69), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("bandwidth_bytes_per_second", sa.BigInteger(), nullable=False),
        sa.Column("is_warm", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_self_tests_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_self_tests")),
    )
    with op.batch_alter_table("self_tests", schema=None) as batch_op:
        batch_op.create_index("ix_self_tests_node_at", ["node_id", "at_us"], unique=False)

    op.create_table(
        "standing_times",
        sa.Column("node_id", sa.String(length=69), nullable=False),
        sa.Column("slot_start_us", sa.BigInteger(), nullable=False),
        sa.Column("present_seconds", sa.Integer(), nullable=False),
        sa.Column("busy_seconds", sa.Integer(), nullable=False),
        sa.Column("linked_busy_seconds", sa.Integer(), nullable=False),
        sa.Column("has_demanded_model", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "busy_seconds >= 0 AND linked_busy_seconds >= 0", name=op.f("ck_standing_times_busy_not_negative")
        ),
        sa.CheckConstraint(
            "present_seconds BETWEEN 0 AND 600", name=op.f("ck_standing_times_present_within_slot")
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_standing_times_node_id")),
        sa.PrimaryKeyConstraint("node_id", "slot_start_us", name=op.f("pk_standing_times")),
    )
    with op.batch_alter_table("standing_times", schema=None) as batch_op:
        batch_op.create_index("ix_standing_times_slot", ["slot_start_us"], unique=False)

    op.create_table(
        "upkeep_windows",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("node_id", sa.String(length=69), nullable=False),
        sa.Column("announced_us", sa.BigInteger(), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("end_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("end_us > start_us", name=op.f("ck_upkeep_windows_ends_after_start")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_upkeep_windows_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upkeep_windows")),
    )
    with op.batch_alter_table("upkeep_windows", schema=None) as batch_op:
        batch_op.create_index("ix_upkeep_windows_node_start", ["node_id", "start_us"], unique=False)

    op.create_table(
        "held_pay",
        sa.Column("id", sa.String(length=100), nullable=False),
        sa.Column("owner_account_id", sa.String(length=40), nullable=False),
        sa.Column("node_id", sa.String(length=69), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("amount_umlx", sa.BigInteger(), nullable=False),
        sa.Column("earned_us", sa.BigInteger(), nullable=False),
        sa.Column("release_us", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=20), nullable=False),
        sa.Column("released_us", sa.BigInteger(), nullable=True),
        sa.Column("forfeited_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("amount_umlx > 0", name=op.f("ck_held_pay_amount_positive")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_held_pay_job_id")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_held_pay_node_id")),
        sa.ForeignKeyConstraint(
            ["owner_account_id"], ["accounts.id"], name=op.f("fk_held_pay_owner_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_held_pay")),
    )
    with op.batch_alter_table("held_pay", schema=None) as batch_op:
        batch_op.create_index("ix_held_pay_owner_release", ["owner_account_id", "release_us"], unique=False)
        batch_op.create_index("ix_held_pay_release", ["release_us"], unique=False)

    _add_columns()


# Filled for what is there already: jobs so far had the network's only fee and no factor, and each
# attempt's owner is who owns its node now.
_COLUMNS: dict[str, dict[str, tuple[sa.types.TypeEngine[Any], str]]] = {
    "attempts": {
        "owner_account_id": (
            sa.String(40),
            "(SELECT account_id FROM nodes WHERE nodes.id = attempts.node_id)",
        ),
        "is_held": (sa.Boolean(), "false"),
        "is_linked": (sa.Boolean(), "false"),
        "check_result": (sa.String(10), "'none'"),
        "received_tokens": (sa.Integer(), "delivered_tokens"),
        "reading_umlx": (sa.BigInteger(), "0"),
    },
    "enrolments": {"device": (sa.String(64), "substr(node_id, 6)")},
    "jobs": {
        "payer": (sa.String(128), "'user:' || account_id"),
        "rate_card_id": (sa.String(64), "''"),
        "fee_ppm": (sa.Integer(), "100000"),
        "factor_ppm": (sa.Integer(), "1000000"),
    },
    "nodes": {
        "device": (sa.String(64), "substr(id, 6)"),
        "wanted_seat": (sa.String(10), "'idle'"),
        "promised_seconds_per_day": (sa.Integer(), "0"),
        "promised_days": (sa.Integer(), "0"),
        "owner_may_interrupt": (sa.Boolean(), "true"),
        "checks_passed": (sa.Integer(), "0"),
    },
}


def _add_columns() -> None:
    for table, columns in _COLUMNS.items():
        with op.batch_alter_table(table) as batch_op:
            for name, (kind, _) in columns.items():
                batch_op.add_column(sa.Column(name, kind, nullable=True))
            if table == "attempts":
                batch_op.add_column(sa.Column("zero_reason", sa.String(20), nullable=True))
            if table == "nodes":
                batch_op.add_column(sa.Column("first_lent_us", sa.BigInteger(), nullable=True))
        fills = ", ".join(f"{name} = {value}" for name, (_, value) in columns.items())
        op.execute(f"UPDATE {table} SET {fills}")  # noqa: S608 - names and values stand above
        with op.batch_alter_table(table) as batch_op:
            for name, (kind, _) in columns.items():
                batch_op.alter_column(name, existing_type=kind, nullable=False)
            _add_constraints(table, batch_op)


def _add_constraints(table: str, batch_op: BatchOperations) -> None:
    match table:
        case "attempts":
            batch_op.create_index(batch_op.f("ix_attempts_owner_account_id"), ["owner_account_id"])
            batch_op.create_foreign_key(
                batch_op.f("fk_attempts_owner_account_id"), "accounts", ["owner_account_id"], ["id"]
            )
            batch_op.create_check_constraint(
                batch_op.f("ck_attempts_received_within_delivered"),
                "received_tokens BETWEEN 0 AND delivered_tokens",
            )
        case "jobs":
            batch_op.create_check_constraint(
                batch_op.f("ck_jobs_fee_within_charge"), "fee_ppm BETWEEN 0 AND 1000000"
            )
        case "nodes":
            batch_op.create_index(batch_op.f("ix_nodes_device"), ["device"])
        case _:
            pass


def downgrade() -> None:
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_nodes_device"))
        batch_op.drop_column("first_lent_us")
        batch_op.drop_column("checks_passed")
        batch_op.drop_column("owner_may_interrupt")
        batch_op.drop_column("promised_days")
        batch_op.drop_column("promised_seconds_per_day")
        batch_op.drop_column("wanted_seat")
        batch_op.drop_column("device")

    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("factor_ppm")
        batch_op.drop_column("fee_ppm")
        batch_op.drop_column("rate_card_id")
        batch_op.drop_constraint(batch_op.f("ck_jobs_fee_within_charge"), type_="check")
        batch_op.drop_column("payer")

    with op.batch_alter_table("enrolments", schema=None) as batch_op:
        batch_op.drop_column("device")

    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("ck_attempts_received_within_delivered"), type_="check")
        batch_op.drop_constraint(batch_op.f("fk_attempts_owner_account_id"), type_="foreignkey")
        batch_op.drop_index(batch_op.f("ix_attempts_owner_account_id"))
        batch_op.drop_column("zero_reason")
        batch_op.drop_column("reading_umlx")
        batch_op.drop_column("received_tokens")
        batch_op.drop_column("check_result")
        batch_op.drop_column("is_linked")
        batch_op.drop_column("is_held")
        batch_op.drop_column("owner_account_id")

    # Dropping a table drops its indexes; those first that refer to others.
    for table in (
        "held_pay",
        "upkeep_windows",
        "standing_times",
        "self_tests",
        "seat_terms",
        "credited_slots",
        "vouchers",
        "budget_draws",
        "rate_cards",
        "operator_keys",
        "device_health",
        "budgets",
    ):
        op.drop_table(table)
