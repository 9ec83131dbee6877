package backend

import (
	"context"

	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// Participant connects to a participant of two-phase commit, under the name that it
// has with its coordinators; a backend that prepares nothing is refused with a
// [*URLError]. namespace is that of the coordinators' journal; of etcd it is the
// shard's prefix. The context bounds the opening only.
func (t Target) Participant(ctx context.Context, name, namespace string) (_ twopc.Registered, disconnect func(), err error) {
	switch t.kind {
	case "postgres":
		pool, err := t.dialPostgres(ctx)
		if err != nil {
			return nil, nil, err
		}
		p, err := postgres.OpenParticipant(ctx, pool, namespace, nil)
		if err != nil {
			pool.Close()
			return nil, nil, onOneLine(err)
		}
		return twopc.At(name, p), pool.Close, nil
	case "mysql":
		db, err := t.dialMySQL()
		if err != nil {
			return nil, nil, err
		}
		p, err := mysql.OpenParticipant(ctx, db, namespace, nil)
		if err != nil {
			_ = db.Close() // the first error says more
			return nil, nil, err
		}
		return twopc.At(name, p), func() { _ = db.Close() }, nil
	case "etcd":
		client, err := t.dialEtcd(ctx)
		if err != nil {
			return nil, nil, err
		}
		return twopc.At(name, etcd.NewShard(client, namespace)), func() { _ = client.Close() }, nil
	}
	return nil, nil, &URLError{t.kind + " prepares no transactions; use a postgres://, mysql:// or etcd:// URL, or http:// of a participant"}
}
