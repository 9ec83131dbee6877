package redis

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"
)

// Settings of a client, for every driver and guard that uses it; see [With].
type Settings struct {
	// NoEviction declares that the server evicts no key. Set it only if the user
	// may run neither INFO nor CONFIG GET, and the server's maxmemory-policy is
	// known to be noeviction. The policy is then never checked, and
	// Guarantees.Assumes reports that.
	NoEviction bool
	// Replicas is how many replicas must have received a grant, a renewal or a
	// guarded write before it counts; 0 asks for none. The master is asked by WAIT,
	// after the same script. If too few have it after half a second the error is
	// Uncertain: it was written, and may be lost by a failover.
	//
	// With all replicas named, a failover to any of them keeps what was granted and
	// written, so that locks and tokens survive it. Drivers promise that if the
	// server has no more replicas when they open; Guarantees.Assumes says so. In a
	// cluster it is the number of replicas of each master, and each request then takes
	// a connection of its own, because WAIT is for the writes of its connection.
	Replicas int
}

// waitFor is how long replicas may take, in milliseconds.
const waitFor = 500

// errFewReplicas: a write is on the master, and on too few replicas.
var errFewReplicas = errors.New("too few replicas have received the write")

// With returns client with settings. Closing either closes both.
func With(client rueidis.Client, s Settings) rueidis.Client {
	if c, ok := client.(*configured); ok {
		client = c.Client
	}
	return &configured{client, s}
}

type configured struct {
	rueidis.Client
	settings Settings
}

func settingsOf(client rueidis.Client) Settings {
	if c, ok := client.(*configured); ok {
		return c.settings
	}
	return Settings{}
}

// awaitReplicas is the command that follows writes; none if replicas are not asked.
func awaitReplicas(client rueidis.Client) rueidis.Commands {
	n := settingsOf(client).Replicas
	if n == 0 {
		return nil
	}
	return rueidis.Commands{client.B().Arbitrary("WAIT").Args(strconv.Itoa(n), strconv.Itoa(waitFor)).Build()}
}

// replicated is nil if the answer to WAIT names enough replicas.
func replicated(client rueidis.Client, r rueidis.RedisResult) error {
	n, err := r.AsInt64()
	if want := settingsOf(client).Replicas; err == nil && n < int64(want) {
		err = fmt.Errorf("%w: %d of %d", errFewReplicas, n, want)
	}
	return err
}
