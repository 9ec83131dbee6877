package redis

import "github.com/redis/rueidis"

// Settings of a client, for every driver and guard that uses it; see [With].
type Settings struct {
	// NoEviction declares that the server evicts no key. Set it only if the user
	// may run neither INFO nor CONFIG GET, and the server's maxmemory-policy is
	// known to be noeviction. The policy is then never checked, and
	// Guarantees.Assumes reports that.
	NoEviction bool
}

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
