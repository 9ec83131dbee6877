package redis

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// QuorumOptions of a [Quorum]; nil and the zero value work. Programs that share
// locks must use the same nodes, TTL and Prefix.
type QuorumOptions struct {
	// TTL is how long a claim lives without renewal; 0 means [DefaultTTL],
	// otherwise [MinTTL] to [MaxTTL]. Claims are renewed every third of it.
	TTL time.Duration
	// Prefix is put before every name to make the lock's key.
	Prefix string
	// MinWork is how much of the TTL must be left when a claim is granted; slower
	// attempts are given up and repeated. At most half of the TTL.
	MinWork time.Duration
	// NodeTimeout bounds the wait for one node's answer; 0 means a twentieth of the
	// TTL, but 50 ms to 1 s. At most a third of the TTL.
	NodeTimeout time.Duration
	// RestartDelay is for how long after its start a node's votes do not count,
	// since it may have forgotten earlier ones; 0 means the TTL. It must not be
	// less than any TTL used on these nodes. A negative value means none, which is
	// right only if every node writes each vote to disk before it answers
	// (appendfsync always).
	RestartDelay time.Duration
}

func (o *QuorumOptions) orDefault() (QuorumOptions, error) {
	var options QuorumOptions
	if o != nil {
		options = *o
	}
	common, err := (&Options{TTL: options.TTL}).orDefault()
	if err != nil {
		return options, err
	}
	options.TTL = common.TTL
	if options.NodeTimeout == 0 {
		options.NodeTimeout = min(max(options.TTL/20, 50*time.Millisecond), time.Second, options.TTL/3)
	}
	if options.RestartDelay == 0 {
		options.RestartDelay = options.TTL
	}
	switch {
	case options.MinWork < 0 || options.MinWork > options.TTL/2:
		err = fmt.Errorf("a MinWork of %v is invalid: it must be 0 to half of the TTL, %v", options.MinWork, options.TTL/2)
	case options.NodeTimeout < 0 || options.NodeTimeout > options.TTL/3:
		err = fmt.Errorf("a NodeTimeout of %v is invalid: it must be 0 to a third of the TTL, %v", options.NodeTimeout, options.TTL/3)
	case options.RestartDelay > 0 && options.RestartDelay < options.TTL:
		err = fmt.Errorf("a RestartDelay of %v is invalid: it must not be less than the TTL, %v", options.RestartDelay, options.TTL)
	}
	return options, err
}

func checkNodes(clients []rueidis.Client) error {
	if len(clients) < 3 || len(clients)%2 == 0 {
		return fmt.Errorf("%d clients are invalid: a quorum needs an odd number of nodes, at least 3", len(clients))
	}
	for _, c := range clients {
		if c == nil {
			return errors.New("a client is missing: make one for each node with Dial")
		}
	}
	return nil
}
