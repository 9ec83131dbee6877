package postgres

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// DefaultTTL is how long a claim outlives the last sign of its process if
// Options do not say.
const DefaultTTL = 30 * time.Second

// MinTTL and MaxTTL bound Options.TTL.
const (
	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// DefaultNamespace is the namespace if Options do not say.
const DefaultNamespace = "interlock"

// Options of a driver; nil and the zero value work.
type Options struct {
	// TTL is how long the server keeps claims after the last statement that it
	// heard from their process; 0 means [DefaultTTL], otherwise [MinTTL] to
	// [MaxTTL]. A statement is sent every third of it.
	TTL time.Duration
	// Namespace begins the names of the tables, the sequence and the channels,
	// and is part of every lock's key; empty means [DefaultNamespace]. At most
	// 20 lower-case letters, digits and underscores, with a letter first.
	// Tables are looked for along the connection's search_path; [Open] refuses
	// to use those of another schema than the sessions that are there.
	Namespace string
	// Seed says where tokens start, for a move or a repair.
	Seed driver.Seed
}

func (o *Options) withDefaults() (Options, error) {
	var options Options
	if o != nil {
		options = *o
	}
	options.TTL = cmp.Or(options.TTL, DefaultTTL)
	options.Namespace = cmp.Or(options.Namespace, DefaultNamespace)
	if err := leasetable.CheckOptions(options.TTL, MinTTL, MaxTTL, options.Namespace); err != nil {
		return options, err
	}
	return options, options.Seed.Validate()
}

// Key is the advisory lock's number for a name: the first eight bytes of
// SHA-256 over "interlock", the namespace and the name, each but the last
// ended by a zero byte, as a big-endian signed integer. A session that takes
// pg_advisory_lock(Key(…)) by hand excludes a [Driver], and is excluded.
func Key(namespace, name string) int64 {
	sum := sha256.Sum256([]byte("interlock\x00" + namespace + "\x00" + name))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// sessionClass is the first of the two numbers under which a session locks its
// own id. Locks by two numbers never meet those by one.
func sessionClass(namespace string) int32 { return int32(Key(namespace, "")) }

// schemaClass is the first of the two numbers under which a session locks the
// schema of its tables.
func schemaClass(namespace string) int32 { return int32(Key(namespace, "") >> 32) }
