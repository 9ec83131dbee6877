package redis

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
)

//go:embed script
var scripts embed.FS

// source returns a Lua text. It reads and hashes nothing before it is called, so that a program that
// links the package pays only for the scripts that it uses.
type source func() string

// lua returns the texts of files in the directory script, one after the other.
func lua(names ...string) source {
	return sync.OnceValue(func() string {
		var text strings.Builder
		for _, name := range names {
			part, err := scripts.ReadFile("script/" + name + ".lua")
			if err != nil {
				panic(err) // there is no such file
			}
			text.Write(part)
		}
		return text.String()
	})
}

// after returns s with text before it.
func (s source) after(text string) source { return func() string { return text + s() } }

func literal(text string) source { return func() string { return text } }

var (
	contendScript = newLockScript(lua("clock", "contend_one", "draw", "contend_free", "queue", "contend"))
	releaseScript = newLockScript(lua("release_free", "clock", "release_push", "draw", "queue", "release"))
	showScript    = reading(newLockScript(lua("clock", "draw", "queue", "show")))
	renewScript   = newStepwiseScript(lua("value", "renew").after(valueFormat))
	breakScript   = newLockScript(lua("clock", "draw", "queue", "break"))

	plainAcquireScript = newScript(lua("plain_acquire").after(constants))
	plainReleaseScript = newScript(lua("plain_release").after(constants))

	quorumAcquireScript = newScript(lua("quorum_acquire"))
	quorumReleaseScript = newScript(lua("quorum_release"))
	quorumRenewScript   = newScript(lua("value", "quorum_renew"))
)

// constants begin most scripts. ACCEPT and ALIVE are arguments of commands: Redis formats a
// number slowly.
var constants = fmt.Sprintf("local EPOCH_US, MAX_COUNTER, ALIVE_MS, BEAT_MS, ACCEPT, ALIVE, CHANGES = %d, %d, %d, %d, '%d', '%d', '%s'\n",
	int64(interlock.EpochUnixMicro), int64(interlock.MaxCounter), aliveFor.Milliseconds(), (heartbeat / 2).Milliseconds(),
	acceptFor.Milliseconds(), aliveFor.Milliseconds(), changes)

// ours begins the value of a lock in queue mode. A counter of 16 digits, a character and the
// owner follow: see queue.lua.
const ours = "interlock "

// ownerAt is where the owner begins in the value of a lock.
const ownerAt = len(ours) + 16 + 1

// ownerIn returns the owner in the value of a lock, which is the value itself if it is not ours.
func ownerIn(value string) string {
	if len(value) > ownerAt && strings.HasPrefix(value, ours) {
		return value[ownerAt:]
	}
	return value
}

var valueFormat = fmt.Sprintf("local OURS, OWNER_AT = '%s', %d\n", ours, ownerAt+1)

// newLockScript returns a script of queue mode. KEYS are its locks, all of one slot in a
// cluster. The names of the other keys begin with KEY, and are of the same slot.
func newLockScript(text source) *script {
	text = text.after(constants + valueFormat + "local names = #KEYS\nlocal COUNTER, INDEX = KEY .. 'counter', KEY .. 'names'\n")
	s := newStepwiseScript(text.after("local CLUSTER, KEY = false, '" + reserved + wholeTag + "}:'\n"))
	s.whole, s.tagged = newStepwiseScript(text.after("local CLUSTER, KEY = true, string.sub(table.remove(KEYS), 1, -"+strconv.Itoa(len("missing")+1)+")\n")), true
	return s
}

// script is a Lua text that the server knows by its hash.
type script struct {
	source source
	sha    func() string
	reads  bool // it only reads
	// whole is the script for the nodes of a cluster, which takes a last key that never
	// exists. While a slot moves, Redis refuses a script with a missing key before it
	// starts. Without that key it may start, and be stopped half way at a key that it
	// deleted itself.
	whole *script
	// tagged scripts take the tag of their slot from that key, so whole has it always.
	tagged bool
}

func newScript(text source) *script {
	s := newStepwiseScript(text)
	s.whole = newStepwiseScript(text.after("table.remove(KEYS)\n"))
	return s
}

// newStepwiseScript returns a script that may be stopped half way.
func newStepwiseScript(text source) *script {
	once := sync.OnceValue(text)
	return &script{source: once, sha: sync.OnceValue(func() string {
		sum := sha1.Sum([]byte(once())) // the hash of EVALSHA; its strength does not matter
		return hex.EncodeToString(sum[:])
	})}
}

// newReader returns a script that only reads.
func newReader(text source) *script { return reading(newStepwiseScript(text)) }

func reading(s *script) *script {
	s.reads = true
	return s
}

// missing returns the key for b that never exists.
func (b batch) missing() string { return ownKeys(b.keys[0]) + "missing" }

// unbroken converts batches of s to ones that a cluster executes as a whole or not
// at all. A batch of one key already is one.
func (s *script) unbroken(batches []batch) (*script, []batch) {
	if s.whole == nil || len(batches[0].keys) < 2 && !s.tagged {
		return s, batches
	}
	all := make([]batch, len(batches))
	for i, b := range batches {
		all[i] = batch{keys: append(slices.Clone(b.keys), b.missing()), args: b.args}
	}
	return s.whole, all
}

// batch is one run of a script.
type batch struct{ keys, args []string }

// known returns the command that runs a script by its hash, text the one that sends it.
func (s *script) known(to rueidis.Builder, b batch) rueidis.Completed {
	return to.Evalsha().Sha1(s.sha()).Numkeys(int64(len(b.keys))).Key(b.keys...).Arg(b.args...).Build()
}

func (s *script) text(to rueidis.Builder, b batch) rueidis.Completed {
	return to.Eval().Script(s.source()).Numkeys(int64(len(b.keys))).Key(b.keys...).Arg(b.args...).Build()
}

// isUnknown reports whether the server has forgotten the script. It then did not run it,
// so sending the text repeats nothing.
func isUnknown(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }

// runOne executes one batch on one server, without confirmation.
func (s *script) runOne(ctx context.Context, client rueidis.Client, b batch) rueidis.RedisResult {
	result := client.Do(ctx, s.known(client.B(), b))
	if isUnknown(result.Error()) {
		result = client.Do(ctx, s.text(client.B(), b))
	}
	return result
}

// confirms reports whether a run of s by r waits for a confirmation of its writes.
func (s *script) confirms(client rueidis.Client, r request) bool {
	return !s.reads && !r.passing && settingsOf(client).confirms()
}

// run executes the batches in one pipeline, and in a cluster one batch. With Settings.Replicas or
// Fsync, an error may mean that the writes are not confirmed; r.passing disables that check.
func (s *script) run(ctx context.Context, client rueidis.Client, r request, batches []batch) ([]rueidis.RedisResult, error) {
	confirm := s.confirms(client, r)
	if client.Mode() == rueidis.ClientModeCluster && len(batches) > 0 {
		s, batches = s.unbroken(batches)
		if confirm {
			return s.runApart(ctx, client, batches[0])
		}
	}
	commands := make(rueidis.Commands, len(batches))
	for i, b := range batches {
		commands[i] = s.known(client.B(), b)
	}
	if !confirm {
		results := client.DoMulti(ctx, commands...)
		s.resend(ctx, client, batches, results)
		return results, nil
	}
	settings := settingsOf(client)
	results, err := sendConfirmed(ctx, client, append(commands, confirmation(client.B(), settings, true)...))
	if err != nil {
		return nil, err
	}
	results, answers := results[:len(batches)], results[len(batches):]
	if s.resend(ctx, client, batches, results) {
		if answers, err = sendConfirmed(ctx, client, confirmation(client.B(), settings, true)); err != nil {
			return nil, err
		}
	}
	if len(batches) == 1 && results[0].Error() != nil {
		return results, nil
	}
	return results, confirmed(settings, answers)
}

// resend sends the script where the server has forgotten it, and replaces those results.
func (s *script) resend(ctx context.Context, client rueidis.Client, batches []batch, results []rueidis.RedisResult) (resent bool) {
	for i, b := range batches {
		if isUnknown(results[i].Error()) {
			results[i], resent = client.Do(ctx, s.text(client.B(), b)), true
		}
	}
	return resent
}

// runApart executes a batch on an exclusive connection to its node of a cluster, because
// WAIT covers the writes of its own connection.
func (s *script) runApart(ctx context.Context, client rueidis.Client, b batch) (results []rueidis.RedisResult, err error) {
	settings := settingsOf(client)
	err = client.Dedicated(func(node rueidis.DedicatedClient) error {
		answers := node.DoMulti(ctx, append(rueidis.Commands{s.known(node.B(), b)}, confirmation(node.B(), settings, false)...)...)
		if isUnknown(answers[0].Error()) {
			answers = node.DoMulti(ctx, append(rueidis.Commands{s.text(node.B(), b)}, confirmation(node.B(), settings, false)...)...)
		}
		results = answers[:1]
		if results[0].Error() != nil {
			return nil
		}
		return confirmed(settings, answers[1:])
	})
	return results, err
}

// milliseconds formats a time for the scripts.
func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
