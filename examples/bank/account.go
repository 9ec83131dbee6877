package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/fence"
)

// The arithmetic between readBalance and writeBalance runs in the program on
// purpose: one UPDATE that subtracts would not need a lock.

func readBalance(ctx context.Context, tx pgx.Tx, account string) (balance int64, err error) {
	err = tx.QueryRow(ctx, "SELECT balance FROM bank_account WHERE name = $1", account).Scan(&balance)
	if err != nil {
		return 0, fmt.Errorf("read the balance of %q: %w", account, err)
	}
	return balance, nil
}

func writeBalance(ctx context.Context, tx pgx.Tx, account string, balance int64) error {
	_, err := tx.Exec(ctx, "UPDATE bank_account SET balance = $2 WHERE name = $1", account, balance)
	if err != nil {
		return fmt.Errorf("write the balance of %q: %w", account, err)
	}
	return nil
}

// openAccount creates the missing tables and sets the balance.
func openAccount(ctx context.Context, db *pgxpool.Pool, account string, balance int64) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := (fence.Table{}).Create(ctx, postgres.Tx(tx)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS bank_account (
			name text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0))`)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO bank_account VALUES ($1, $2)
			ON CONFLICT (name) DO UPDATE SET balance = excluded.balance`, account, balance)
		return err
	})
}
