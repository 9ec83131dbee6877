package doctor

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/driver/redis"
)

// open opens the driver, which takes no lock and writes no key, and reports what
// "interlock lock" would fail on.
func (p *redisProbe) open(ctx context.Context, r *Report) error {
	const id = "redis.open"
	if p.plain {
		r.add("redis.plain", Info, "mode=plain")
		plain, err := redis.OpenPlain(ctx, p.client, &p.options)
		if err == nil {
			err = plain.Close(context.WithoutCancel(ctx))
		}
		return r.opened(ctx, id, err)
	}
	d, err := redis.Open(ctx, p.client, &p.options)
	if err := r.opened(ctx, id, err); err != nil || d == nil {
		return err
	}
	err = redisRights(ctx, r, d, p.options.Prefix)
	if closed := d.Close(context.WithoutCancel(ctx)); err == nil {
		err = closed
	}
	return err
}

// opened reports the outcome of opening a driver. The error is that of ctx.
func (r *Report) opened(ctx context.Context, id string, err error) error {
	switch {
	case err == nil:
		r.add(id, OK, "locks can be opened")
	case ctx.Err() != nil:
		return err
	default:
		r.add(id, Critical, "%v", err)
	}
	return nil
}

// redisRights reports what the user lacks to lock any name, and to lock every name.
func redisRights(ctx context.Context, r *Report, d *redis.Driver, prefix string) error {
	const id = "redis.rights"
	name := "interlock-doctor-" + rand.Text() // nobody has been given this one
	missing, known, err := d.MissingRights(ctx, name)
	if err != nil {
		return err
	}
	key := "~" + prefix + name
	some := slices.Contains(missing, key)
	missing = slices.DeleteFunc(missing, func(rule string) bool { return rule == key })
	switch {
	case !known:
		r.add(id, Info, "the server is older than 7.0 and does not report rights")
	case len(missing) > 0:
		r.add(id, Critical, "rules that are missing: %s", strings.Join(missing, " "))
	case some:
		r.add(id, Warning, "locks can be taken on some names only: keys such as %s are not permitted", prefix+name)
	default:
		r.add(id, OK, "locks can be taken on every name")
	}
	return nil
}
