package fence

import (
	"context"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Share reads the last committed marks of resources, and prevents other transactions from
// raising them until this transaction ends. Any number of transactions may share a mark. A
// writer uses it under a token that has entered before. If the mark equals its token, no other
// token enters before its transaction has ended. The result omits a resource without a mark,
// and Share does not prevent its first entry.
//
// Share waits for a transaction that has entered and not ended. On PostgreSQL it does not wait
// for a transaction that waits to enter, so overlapping shares can delay that one without
// bound. So share for a short time, and while the claim lasts. If a transaction shares a mark
// and then enters it, it can deadlock, which is Retryable.
func (t Table) Share(ctx context.Context, db driver.SQL, resources ...string) (map[string]interlock.Token, error) {
	return t.share(ctx, db, "", resources)
}

// ShareNow is [Table.Share] without waiting: the result also omits a mark that another
// transaction is raising. [Table.Show] distinguishes the two cases.
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
		if err := validateResource(op, r); err != nil {
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
