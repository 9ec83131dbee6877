package postgres

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// DefaultTTL is the default of Options.TTL.
const DefaultTTL = 30 * time.Second

// MinTTL and MaxTTL bound Options.TTL.
const (
	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// DefaultNamespace is the default of Options.Namespace.
const DefaultNamespace = "interlock"

// Options of a driver; nil and the zero value work.
type Options struct {
	// TTL is how long the server keeps claims after the last statement of their process; 0
	// means [DefaultTTL], otherwise [MinTTL] to [MaxTTL]. A statement is sent every third of
	// it.
	TTL time.Duration
	// Namespace is the prefix of tables, sequence and channels, and part of every lock's key;
	// empty means [DefaultNamespace]. It has at most 20 lower-case letters, digits and
	// underscores, with a letter first. Tables are found by the connection's search_path;
	// [Open] refuses another schema than that of existing sessions.
	Namespace string
	// Seed sets where tokens start, for a move or a repair.
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

// Key returns the number of a name's advisory lock. It is the first eight bytes of a SHA-256, as
// a big-endian signed integer. The hash is over "interlock", the namespace and the name, each
// but the last followed by a zero byte. A session that takes pg_advisory_lock(Key(…)) excludes a
// [Driver], and is excluded by it.
func Key(namespace, name string) int64 {
	sum := sha256.Sum256([]byte("interlock\x00" + namespace + "\x00" + name))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// sessionClass is the first of the two numbers of a session's lock on its own id. Locks by two numbers
// do not conflict with those by one.
func sessionClass(namespace string) int32 { return int32(Key(namespace, "")) }

// schemaClass is the first of the two numbers of a session's lock on the schema of its tables.
func schemaClass(namespace string) int32 { return int32(Key(namespace, "") >> 32) }

// Schema returns the statements that create the tables of this package, which
// otherwise are created by whatever needs them first: those of session locks and
// of row locks of a namespace (empty means [DefaultNamespace]), of values, of keys, and the
// marks of prepared transactions. The namespace is trusted.
func Schema(namespace string) (statements []string) {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	for text := range strings.SplitSeq(schema+tableSchema, ";") {
		if text = strings.TrimSpace(text); text != "" {
			statements = append(statements, strings.ReplaceAll(text, "{ns}", namespace))
		}
	}
	statements = append(statements, keyValuesSchema(namespace+"_kv", namespace+"_kv_revision")...)
	return append(statements, valuesSchema(namespace+"_value"), marksSchema(DefaultMarks))
}
