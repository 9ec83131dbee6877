package mysql

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
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

// DefaultPoll is the default of Options.Poll.
const DefaultPoll = 250 * time.Millisecond

// DefaultNamespace is the default of Options.Namespace.
const DefaultNamespace = "interlock"

// Options of a driver; nil and the zero value work.
type Options struct {
	// TTL is the lease duration of claims after the last request of their process; 0 means
	// [DefaultTTL], otherwise [MinTTL] to [MaxTTL]. Claims are renewed every third of it.
	TTL time.Duration
	// Poll bounds the time between two attempts of a waiter; 0 means [DefaultPoll], otherwise
	// 1 ms to the TTL. Intervals start shorter, and are random.
	Poll time.Duration
	// Namespace is the prefix of the table names and part of every lock name; empty means
	// [DefaultNamespace]. It has at most 20 lower-case letters, digits and underscores, and
	// starts with a letter. The tables are in the database of the connection.
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
	options.Poll = cmp.Or(options.Poll, min(DefaultPoll, options.TTL))
	options.Namespace = cmp.Or(options.Namespace, DefaultNamespace)
	if err := leasetable.CheckOptions(options.TTL, MinTTL, MaxTTL, options.Namespace); err != nil {
		return options, err
	}
	if options.Poll < time.Millisecond || options.Poll > options.TTL {
		return options, fmt.Errorf("a poll interval of %v is invalid: it must be 1ms to the TTL of %v", options.Poll, options.TTL)
	}
	return options, options.Seed.Validate()
}

// statementTimeout bounds one statement: a third of the TTL, 1 s to 10 s.
func (o Options) statementTimeout() time.Duration {
	return min(max(o.TTL/3, time.Second), 10*time.Second)
}

// sql replaces the placeholders of the namespace and the server's clock in a statement.
func (o Options) sql(text string) string {
	return strings.NewReplacer("{ns}", o.Namespace, "{now}", "utc_timestamp(6)",
		"{floor}", "(timestampdiff(microsecond, '2020-01-01', utc_timestamp(6)))",
		"{most}", strconv.Itoa(mostReserved), "{limit}", fraction(o.statementTimeout())).Replace(text)
}

// Schema returns the statements that create the tables of this package, which otherwise are created at
// their first use: those of session locks and row locks of a namespace (empty means
// [DefaultNamespace]), of its [KeyValues], and of the marks of prepared transactions. The namespace is
// trusted.
func Schema(namespace string) (statements []string) {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	for _, text := range slices.Concat(sessionSchema, tableSchema) {
		statements = append(statements, strings.ReplaceAll(text, "{ns}", namespace))
	}
	return append(statements, NewKeyValues(nil, namespace+"_kv").sql(keyValuesSchema), marksSchema(DefaultMarks))
}
