// Package mysql lends a user's own MariaDB transactions to Interlock. It does
// not make a transaction safe, guard/fence does, with what this package gives
// it; and it retries nothing.
//
//	marks := fence.Table{}
//	err := fence.Tx(ctx, mysql.DB(db), marks, claim, "account/42",
//		func(ctx context.Context, tx *sql.Tx) error { … })
package mysql
