package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

func (a *app) schemaCommand() *cobra.Command {
	var only []string
	var grant string
	names := []string{backend.LockPart("").Name}
	for _, p := range backend.Parts {
		names = append(names, p.Name)
	}
	c := &cobra.Command{
		Use: "schema postgres|mysql", Short: "Print the SQL of all tables, and the least rights", Args: oneArg("database: postgres or mysql"),
		ValidArgs: []string{"postgres", "mysql"},
		Example: `  interlock schema postgres --grant-to app | psql bank
  interlock schema mysql --only fence,outbox
  interlock schema postgres --only locks -o json`,
		Long: `Prints the statements that create the tables of all packages, as this version of
Interlock creates them itself: apply them with an administrator's rights, and run
services with those that --grant-to prints. Applying them again changes nothing.
Parts: ` + strings.Join(names, ", ") + `.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if i := slices.IndexFunc(only, func(name string) bool { return !slices.Contains(names, name) }); i >= 0 {
				return usage("there is no part %q; there are: %s", only[i], strings.Join(names, ", "))
			}
			if !roleName.MatchString(grant) {
				return usage("--grant-to %q is not a name of letters, digits and _", grant)
			}
			if args[0] == "postgres" && mixedCase.MatchString(grant) {
				grant = `"` + grant + `"`
			}
			return a.printSchema(args[0], only, grant)
		},
	}
	c.Flags().StringSliceVar(&only, "only", nil, "only these parts, separated by commas")
	c.Flags().StringVar(&grant, "grant-to", "", "also print the least rights for this `role`")
	completes(c, "only", names...)
	return c
}

var (
	roleName  = regexp.MustCompile(`^[A-Za-z0-9_]*$`)
	mixedCase = regexp.MustCompile(`[A-Z]|^[0-9]`) // PostgreSQL reads it in lower case, or not at all, unless it is quoted
)

// partView is the JSON form of a part's tables; see docs/reference/cli.md.
type partView struct {
	Part       string   `json:"part"`
	Statements []string `json:"statements"`
	Grants     []string `json:"grants,omitempty"`
}

func (a *app) printSchema(database string, only []string, role string) error {
	dialect, ok := map[string]driver.Dialect{"postgres": driver.Postgres, "mysql": driver.MariaDB, "mariadb": driver.MariaDB}[database]
	if !ok {
		return usage("there is no schema for %q; there is for postgres and mysql", database)
	}
	var views []partView
	var t text
	for _, p := range slices.Concat(backend.Parts, []backend.Part{backend.LockPart("")}) {
		if len(only) > 0 && !slices.Contains(only, p.Name) {
			continue
		}
		statements, err := driver.Statements(dialect, p)
		if err != nil {
			return fail(exitBug, "schema of %s: %w", p.Name, err)
		}
		v := partView{p.Name, statements, grantsFor(statements, role)}
		views = append(views, v)
		t += line("-- %s\n", v.Part)
		if dialect == driver.Postgres {
			t += "begin;\n"
		}
		for _, s := range slices.Concat(v.Statements, v.Grants) {
			t += lines(s + ";\n")
		}
		if dialect == driver.Postgres {
			t += "commit;\n"
		}
		t += "\n"
	}
	return a.print(struct {
		Parts []partView `json:"parts"`
	}{views}, t)
}

var created = regexp.MustCompile(`(?i)^create (?:unlogged )?(table|sequence) if not exists (\S+)`)

// grantsFor returns the rights to use the tables of statements: to read and write
// rows, and nothing else. They also cover identity columns.
func grantsFor(statements []string, role string) (grants []string) {
	if role == "" {
		return nil
	}
	for _, s := range statements {
		m := created.FindStringSubmatch(strings.TrimSpace(s))
		switch {
		case m == nil:
		case m[1] == "sequence":
			grants = append(grants, fmt.Sprintf("grant usage, select, update on sequence %s to %s", m[2], role))
		default:
			grants = append(grants, fmt.Sprintf("grant select, insert, update, delete on %s to %s", m[2], role))
		}
	}
	return grants
}
