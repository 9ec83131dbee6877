package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock/driver"
)

// atomic has the level and the statements. An error before COMMIT is rolled back, and becomes a row; that
// of COMMIT is returned.
const atomic = `begin not atomic
declare v_done, v_commit int default 0;
declare v_value bigint;
declare exit handler for sqlexception begin
	rollback;
	if v_commit then resignal; end if;
	select 0, null;
end;
set transaction isolation level %s;
start transaction;
%s
if v_done then set v_commit = 1; commit; else rollback; end if;
select v_done, v_value;
end`

const parseError = 1064

var _ driver.Atomic = pool{}

// Atomically runs a transaction in one request; see [driver.Atomic].
func (p pool) Atomically(ctx context.Context, level driver.Isolation, statements string) (done bool, value *int64, err error) {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return false, nil, failed(ctx, inBegin, err)
	}
	defer conn.Close()
	query := fmt.Sprintf(atomic, strings.ToUpper(level.Standard().String()), statements)
	err = one(ctx, conn, query, nil, &done, &value)
	switch {
	case err == nil:
		return done, value, nil
	case isNumber(err, parseError):
		return false, nil, nil
	}
	// The transaction may be open: the session must not return to the pool.
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	at := inStatement
	if native := new(client.MySQLError); errors.As(err, &native) {
		at = inCommit
	}
	return false, nil, failed(ctx, at, err)
}
