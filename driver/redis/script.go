package redis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
)

//go:embed script/queue.lua
var queueLua string

//go:embed script/contend.lua
var contendLua string

//go:embed script/release.lua
var releaseLua string

//go:embed script/renew.lua
var renewLua string

//go:embed script/show.lua
var showLua string

//go:embed script/break.lua
var breakLua string

//go:embed script/plain_acquire.lua
var plainAcquireLua string

//go:embed script/plain_release.lua
var plainReleaseLua string

//go:embed script/quorum_acquire.lua
var quorumAcquireLua string

//go:embed script/quorum_renew.lua
var quorumRenewLua string

var (
	contendScript = newScript(constants + queueLua + contendLua)
	releaseScript = newScript(constants + queueLua + releaseLua)
	showScript    = newScript(constants + queueLua + showLua)
	renewScript   = newScript(renewLua)
	breakScript   = newScript(constants + queueLua + breakLua)

	plainAcquireScript = newScript(constants + plainAcquireLua)
	plainReleaseScript = newScript(constants + plainReleaseLua)

	quorumAcquireScript = newScript(constants + quorumAcquireLua)
	quorumRenewScript   = newScript(quorumRenewLua)
)

var constants = fmt.Sprintf("local EPOCH_US, MAX_COUNTER, ACCEPT_MS, CHANGES = %d, %d, %d, '%s'\n",
	int64(interlock.EpochUnixMicro), int64(interlock.MaxCounter), acceptFor.Milliseconds(), changes)

// script is a Lua text that the server knows by its hash.
type script struct{ source, sha string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source)) // what EVALSHA wants; nothing rests on its strength
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

// batch is one run of a script.
type batch struct{ keys, args []string }

// run executes the batches in one pipeline. A server that has forgotten the
// script did not run it, so sending the text then is no repetition. With
// Settings.Replicas, an error says that too few of them have what was written.
func (s *script) run(ctx context.Context, client rueidis.Client, batches []batch) ([]rueidis.RedisResult, error) {
	commands := make(rueidis.Commands, len(batches))
	for i, b := range batches {
		commands[i] = client.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(b.keys))).Key(b.keys...).Arg(b.args...).Build()
	}
	wait := awaitReplicas(client)
	results := client.DoMulti(ctx, append(commands, wait...)...)
	for i, b := range batches {
		if err := results[i].Error(); err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
			results[i] = client.Do(ctx,
				client.B().Eval().Script(s.source).Numkeys(int64(len(b.keys))).Key(b.keys...).Arg(b.args...).Build())
			if wait != nil {
				results[len(batches)] = client.Do(ctx, awaitReplicas(client)[0])
			}
		}
	}
	if wait == nil || len(batches) == 1 && results[0].Error() != nil {
		return results[:len(batches)], nil
	}
	return results[:len(batches)], replicated(client, results[len(batches)])
}

// milliseconds is how the scripts take a time.
func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
