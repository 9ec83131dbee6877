package fence

import (
	"context"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Share reads the marks of resources as they were committed last, and keeps them
// from being raised until the transaction ends; any number of transactions may share
// a mark. It is for those who write under a token that entered before: if the mark is
// theirs, nobody enters before their transaction has ended. A resource that nothing
// entered is missing in the result, and nothing keeps the first one from entering.
//
// It waits for a transaction that has entered and not ended. On PostgreSQL it does
// not wait for one that waits to enter, which those who share can hold up for as long
// as they overlap: share for a short time, and while the claim lasts. To share a mark and
// then enter it in one transaction can deadlock, which is Retryable.
func (t Table) Share(ctx context.Context, db driver.SQL, resources ...string) (map[string]interlock.Token, error) {
	return t.share(ctx, db, "", resources)
}

// ShareNow is [Table.Share] without waiting: a mark that another transaction is raising
// is missing in the result, like one that nothing entered. [Table.Show] tells which.
func (t Table) ShareNow(ctx context.Context, db driver.SQL, resources ...string) (map[string]interlock.Token, error) {
	return t.share(ctx, db, " skip locked", resources)
}

func (t Table) share(ctx context.Context, db driver.SQL, skip string, resources []string) (map[string]interlock.Token, error) {
	const op = "share mark"
	if len(resources) == 0 {
		return nil, nil
	}
	args := make([]any, len(resources))
	for i, r := range resources {
		if err := named(op, r); err != nil {
			return nil, err
		}
		args[i] = r
	}
	m, err := t.open(op, resources[0], db)
	if err != nil {
		return nil, err
	}
	seen := map[string]interlock.Token{}
	query := `select resource, token from {marks} where resource in (?` + strings.Repeat(`, ?`, len(args)-1) + `) order by resource {share}` + skip
	err = m.Each(ctx, query, args, func(scan func(...any) error) error {
		var resource string
		var token interlock.Token
		err := scan(&resource, (*int64)(&token))
		seen[resource] = token
		return err
	})
	return seen, err
}
