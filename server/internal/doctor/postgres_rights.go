package doctor

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/postgres"
)

// relationRights: names of tables and sequences. For each: whether it exists, whether
// the role owns it, and the rights on it that locks need and the role lacks.
const relationRights = `select r.name, c.oid is not null, coalesce(pg_has_role(c.relowner, 'usage'), false),
	array_to_string(array(select p from unnest(case c.relkind when 'S' then array['usage', 'select', 'update']
		else array['select', 'insert', 'update', 'delete'] end) p
		where not case c.relkind when 'S' then has_sequence_privilege(c.oid, p) else has_table_privilege(c.oid, p) end), ' and ')
	from unnest($1::text[]) r(name) left join pg_class c on c.oid = to_regclass(r.name)`

// mayCreate: the schema in which tables are created, empty if there is none, and whether
// the role may create tables there.
const mayCreate = `select coalesce(current_schema(), ''), coalesce(has_schema_privilege(current_schema(), 'create'), false)`

var (
	relation = regexp.MustCompile(`^create (?:unlogged )?(?:table|sequence) if not exists (\S+)`)
	indexed  = regexp.MustCompile(`^create index if not exists \S+ on (\S+)`)
)

// relations are the tables and sequences that locks use, and those of them with indexes.
func (p *postgresProbe) relations() (names, withIndex []string) {
	kept := []string{"holder", "waiter", "session", "watcher", "break", "token", "reserved"}
	if p.table {
		kept = []string{"lease", "lease_break"}
	}
	for _, s := range postgres.Schema(p.namespace) {
		for pattern, to := range map[*regexp.Regexp]*[]string{relation: &names, indexed: &withIndex} {
			if m := pattern.FindStringSubmatch(s); m != nil && slices.Contains(kept, strings.TrimPrefix(m[1], p.namespace+"_")) {
				*to = append(*to, m[1])
			}
		}
	}
	return names, withIndex
}

// rights reports what the role lacks to use the tables of locks, or to create those that
// do not exist, as the driver does when it opens.
func (p *postgresProbe) rights(ctx context.Context, r *Report) error {
	names, withIndex := p.relations()
	rows, err := p.conn.Query(ctx, relationRights, pgx.QueryExecModeSimpleProtocol, names)
	if err != nil {
		return err
	}
	var lacks, absent, foreign []string
	var name, lacking string
	var exists, owned bool
	_, err = pgx.ForEachRow(rows, []any{&name, &exists, &owned, &lacking}, func() error {
		switch {
		case !exists:
			absent = append(absent, name)
		case lacking != "":
			lacks = append(lacks, lacking+" on "+name)
		}
		if exists && !owned && slices.Contains(withIndex, name) {
			foreign = append(foreign, name)
		}
		return nil
	})
	if err == nil && len(absent) > 0 {
		var create string
		create, err = p.creation(ctx, absent, foreign)
		lacks = append(lacks, create)
	}
	lacks = slices.DeleteFunc(lacks, func(s string) bool { return s == "" })
	r.addIf(len(lacks) > 0, "postgres.rights", Critical, "rights on the tables of locks that are missing: %s", joinOrNone(lacks))
	return err
}

// creation is what the role lacks to create tables; an index of a table that exists is
// created by the owner of the table only, also if the index exists.
func (p *postgresProbe) creation(ctx context.Context, absent, foreign []string) (lacks string, err error) {
	var schema string
	var may bool
	err = p.conn.QueryRow(ctx, mayCreate, pgx.QueryExecModeSimpleProtocol).Scan(&schema, &may)
	switch {
	case err != nil:
		return "", err
	case schema == "":
		return "a schema of the search_path to create tables in", nil
	case !may:
		return "create on schema " + schema + " for " + joinOrNone(absent), nil
	case len(foreign) > 0:
		return "ownership of " + joinOrNone(foreign) + " to create " + joinOrNone(absent), nil
	}
	return "", nil
}
