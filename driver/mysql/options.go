package mysql

import (
	"cmp"
	"fmt"
	"strings"
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

// DefaultPoll is the longest time between two tries of a waiter if Options do
// not say.
const DefaultPoll = 250 * time.Millisecond

// DefaultNamespace is the namespace if Options do not say.
const DefaultNamespace = "interlock"

// Options of a driver; nil and the zero value work.
type Options struct {
	// TTL is how long claims outlive the last sign of their process; 0 means
	// [DefaultTTL], otherwise [MinTTL] to [MaxTTL]. They are renewed every third
	// of it.
	TTL time.Duration
	// Poll is the longest time between two tries of a waiter; 0 means
	// [DefaultPoll], otherwise 1 ms to the TTL. It begins with less, and each
	// time is random.
	Poll time.Duration
	// Namespace begins the names of the tables and is part of every lock; empty
	// means [DefaultNamespace]. At most 20 lower-case letters, digits and
	// underscores, with a letter first. The tables are in the database of the
	// connection.
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

// sql puts the namespace and the server's clock into a statement of ours.
func (o Options) sql(text string) string {
	return strings.NewReplacer("{ns}", o.Namespace, "{now}", "utc_timestamp(6)",
		"{floor}", "(timestampdiff(microsecond, '2020-01-01', utc_timestamp(6)))",
		"{limit}", fraction(o.statementTimeout())).Replace(text)
}
