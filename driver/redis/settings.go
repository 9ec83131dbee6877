package redis

import (
	"context"

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
	// guarded write before it counts; 0 disables that. WAIT asks the master, after
	// the same script. If fewer have it after half a second the error is Uncertain:
	// it was written, and a failover may lose it.
	//
	// If it is the number of all replicas, a failover to any of them keeps all grants and
	// writes. So locks and tokens survive it. Drivers guarantee that if the server has no more
	// replicas when they open; Guarantees.Assumes says so. In a cluster it is the number of
	// replicas of each master. Each request then takes its own connection, because WAIT covers
	// the writes of its connection.
	Replicas int
	// Fsync makes the server write a grant, a renewal or a guarded write to its disk
	// before it counts, by WAITAOF. Exclusion then survives a crash of the server
	// also with appendfsync everysec. If the write is not on disk after two seconds
	// the error is Uncertain.
	//
	// A server without WAITAOF (before Redis 7.2), without appendonly, or with
	// appendfsync no refuses it, and so does a cluster. It takes as long as the server
	// waits between two fsyncs, up to a second and more: let Options.TTL be 10 s or
	// more. Each waiting request has its own connection.
	Fsync bool
}

// With returns client with settings. Closing either closes both.
func With(client rueidis.Client, s Settings) rueidis.Client {
	if c, ok := client.(*configured); ok {
		return &configured{c.Client, s, c.link}
	}
	return &configured{client, s, nil}
}

type configured struct {
	rueidis.Client
	settings Settings
	link     *link // nil if the connections are not watched
}

func (c *configured) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	result := c.Client.Do(ctx, command)
	c.link.look(result)
	return result
}

func (c *configured) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	results := c.Client.DoMulti(ctx, commands...)
	c.link.look(results...)
	return results
}

func (c *configured) Close() {
	c.link.close()
	c.Client.Close()
}

func settingsOf(client rueidis.Client) Settings {
	if c, ok := client.(*configured); ok {
		return c.settings
	}
	return Settings{}
}
