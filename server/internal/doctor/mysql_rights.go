package doctor

import (
	"context"
	"errors"
	"regexp"
	"strings"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock/driver/mysql"
)

// denied are the numbers by which MariaDB refuses a right: to a database, a statement on a
// table, a column, and one that needs a global right.
var denied = map[uint16]bool{1044: true, 1142: true, 1143: true, 1227: true}

var createsTable = regexp.MustCompile(`^create table if not exists (\S+) \(\s*(\w+)`)

// rights reports what the user lacks to use the tables of locks, or to create them if one
// is missing, as the driver does when it opens. The server checks the rights of a statement
// when it prepares it; nothing is executed.
func (p *mysqlProbe) rights(ctx context.Context, r *Report) error {
	var lacks, create []string
	absent := false
	for _, s := range mysql.Schema(p.namespace) {
		m := createsTable.FindStringSubmatch(s)
		if m == nil || !p.uses(m[1]) {
			continue
		}
		there := 0
		if err := p.db.QueryRowContext(ctx, `select count(*) from information_schema.tables
			where table_schema = database() and table_name = ?`, m[1]).Scan(&there); err != nil {
			return err
		}
		absent = absent || there == 0
		missing, err := p.lacking(ctx, "create", s)
		if err != nil {
			return err
		}
		if missing != "" {
			create = append(create, missing+" on "+m[1])
		}
		missing, err = p.lacking(ctx, "select", "select 1 from "+m[1], "insert", "insert into "+m[1]+" () values ()",
			"update", "update "+m[1]+" set "+m[2]+" = "+m[2], "delete", "delete from "+m[1])
		if err != nil {
			return err
		}
		if missing != "" {
			lacks = append(lacks, missing+" on "+m[1])
		}
	}
	if absent {
		lacks = append(lacks, create...)
	}
	r.addIf(len(lacks) > 0, "mysql.rights", Critical, "rights on the tables of locks that are missing: %s", joinOrNone(lacks))
	return nil
}

// uses reports whether locks of the URL's mode use a table.
func (p *mysqlProbe) uses(table string) bool {
	kind, own := strings.CutPrefix(table, p.namespace+"_")
	lease := strings.HasPrefix(kind, "lease")
	return own && (p.table && lease || !p.table && (strings.HasPrefix(kind, "holder") || kind == "break"))
}

// lacking prepares statements, each after the name of its right, and returns the names of
// those that the server denies.
func (p *mysqlProbe) lacking(ctx context.Context, statements ...string) (string, error) {
	var lacks []string
	for i := 0; i < len(statements); i += 2 {
		prepared, err := p.db.PrepareContext(ctx, statements[i+1])
		var refused *client.MySQLError
		switch {
		case err == nil:
			_ = prepared.Close() // the connection is ours, and ends with the examination
		case !errors.As(err, &refused):
			return "", err
		case denied[refused.Number]:
			lacks = append(lacks, statements[i])
		case refused.Number != noTable:
			return "", err
		}
	}
	return strings.Join(lacks, " and "), nil
}
