package redis

import (
	"errors"
	"net/url"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
)

// dialTimeout bounds connecting. silence is how long an answer may be missing
// before a connection is given up, so that a new one can renew in time.
const (
	dialTimeout = 2 * time.Second
	silence     = 2 * time.Second
)

// Dial connects to one server, or to the master that sentinels know, with
// settings that are safe for locks: nothing is sent twice, a silent connection
// is given up after seconds. It blocks for at most a few seconds. URLs are
// redis://, rediss:// or unix://, as rueidis.ParseURL describes; dial_timeout
// and write_timeout in the query change the times; eviction=none is
// [Settings].NoEviction. Close the client after the drivers that use it.
func Dial(address string) (rueidis.Client, error) {
	option, err := clientOption(address)
	settings := Settings{}
	if err == nil {
		settings, err = settingsIn(address)
	}
	if err != nil {
		return nil, problem(request{op: "connect"}, interlock.Definite, err)
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return nil, harmless(request{op: "connect"}, failure(request{op: "connect"}, err))
	}
	if settings == (Settings{}) {
		return client, nil
	}
	return With(client, settings), nil
}

// settingsIn are those that the query of a URL names.
func settingsIn(address string) (s Settings, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return s, errors.New("not a URL")
	}
	query := u.Query()
	switch value := query.Get("eviction"); {
	case value == "none":
		s.NoEviction = true
	case query.Has("eviction"):
		return s, errors.New("the option eviction has the value none, or is left out")
	}
	return s, nil
}

// clientOption makes the client's settings; its errors do not repeat the URL,
// which may hold a password.
func clientOption(address string) (rueidis.ClientOption, error) {
	option, err := rueidis.ParseURL(address)
	var malformed *url.Error
	if errors.As(err, &malformed) {
		err = errors.Join(errors.New("not a URL"), malformed.Err)
	}
	if err != nil {
		return option, err
	}
	if len(option.InitAddress) > 1 && option.Sentinel.MasterSet == "" {
		return option, errors.New("several addresses mean a Redis Cluster, which is not supported")
	}
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = dialTimeout
	}
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = silence
	}
	if option.ClientName == "" {
		option.ClientName = "interlock"
	}
	option.DisableRetry, option.DisableCache = true, true
	option.ForceSingleClient = option.Sentinel.MasterSet == ""
	option.PipelineMultiplex = -1 // one connection, so that requests keep their order
	option.ReadBufferEachConn, option.WriteBufferEachConn = 1<<16, 1<<16
	return option, nil
}
