package redis

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

var rightsScript = newReader(lua("rights"))

// MissingRights returns the rights that the client's user lacks to acquire, renew and release
// the lock of a name. Each is as an ACL rule would grant it: "+zadd", "~key" or "&channel". It
// writes nothing. known is false if the server is older than 7.0, which does not report rights.
// It blocks for one request.
func (d *Driver) MissingRights(ctx context.Context, name string) (missing []string, known bool, err error) {
	lock, err := d.layout.key(name, "owner")
	if err != nil {
		return nil, false, err
	}
	rules := lockRules(d.layout.keysOf(lock), settingsOf(d.conn.client))
	var b batch
	for _, r := range rules {
		b.args = append(append(b.args, strconv.Itoa(len(r.command))), r.command...)
	}
	asked := request{op: "read rights", name: name, harmless: true}
	m, err := d.conn.eval(ctx, asked, rightsScript, b)
	if isForbidden(err) {
		return []string{"+evalsha", "+eval"}, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	allowed, err := m.AsIntSlice()
	if err != nil || len(allowed) != len(rules) {
		return nil, false, failure(asked, err)
	}
	denied := map[string]bool{}
	for i, r := range rules {
		if allowed[i] == 0 && !denied[r.after] {
			denied[r.rule] = true
			missing = append(missing, r.rule)
		}
	}
	return missing, true, nil
}

// rule is an ACL rule, and a command that the server permits only under it.
type rule struct {
	rule    string
	command []string
	after   string // a rule without which command is always refused
}

// luaCalls finds the commands without which a script fails.
var luaCalls = regexp.MustCompile(`redis\.call\('([A-Z]+)'`)

// lockRules returns those that the lock with the keys k needs. The right to run a script
// on a key is the right to read and write it.
func lockRules(k keys, s Settings) (rules []rule) {
	commands := []string{"EVAL"}
	for _, s := range []*script{contendScript, releaseScript, renewScript} {
		for _, found := range luaCalls.FindAllStringSubmatch(s.source(), -1) {
			commands = append(commands, found[1])
		}
	}
	slices.Sort(commands)
	for _, key := range []string{k.lock, k.queue, k.wait, k.counter, k.names} {
		rules = append(rules, rule{"~" + key, []string{"EVALSHA", contendScript.sha(), "1", key}, ""})
	}
	for _, c := range slices.Compact(commands) {
		r := rule{"+" + strings.ToLower(c), []string{c, k.queue}, "~" + k.queue}
		switch c {
		case "EVAL":
			r.command, r.after = []string{c, "", "0"}, ""
		case "TIME":
			r.command, r.after = []string{c}, ""
		}
		rules = append(rules, r)
	}
	if s.Replicas > 0 {
		rules = append(rules, rule{"+wait", []string{"WAIT", "0", "1"}, ""})
	}
	return append(rules, rule{"+publish &" + pushes + "*", []string{"PUBLISH", pushes, ""}, ""})
}

// evalParts runs a script on the batch of each part, as evalAll. The server refuses a whole batch
// for one key that the user may not use, and while a slot moves, if it has only some of the keys.
// Then each half is a part of its own, and is sent again. It returns the parts with their results.
func evalParts[T any](ctx context.Context, c *conn, r request, s *script, parts [][]T, batches func([][]T) []batch) ([][]T, []rueidis.RedisResult, error) {
	results, err := c.evalAll(ctx, r, s, batches(parts))
	if err != nil {
		return parts, nil, err
	}
	var sent, halves [][]T
	var answers []rueidis.RedisResult
	for i, part := range parts {
		if half := len(part) / 2; half > 0 && isDivisible(s, results[i].Error()) {
			halves = append(halves, part[:half], part[half:])
			continue
		}
		sent, answers = append(sent, part), append(answers, results[i])
	}
	if len(halves) == 0 {
		return parts, results, nil
	}
	halves, results, err = evalParts(ctx, c, r, s, halves, batches)
	for range halves {
		if err != nil {
			results = append(results, rueidis.NewErrorResult(err))
		}
	}
	return append(sent, halves...), append(answers, results...), nil
}

// isDivisible reports whether the server may execute a part of a batch that it has refused. A script
// that runs as a whole needs the keys of its slot, too.
func isDivisible(s *script, err error) bool {
	return isForbidden(err) || s.whole == nil && err != nil && strings.HasPrefix(err.Error(), "TRYAGAIN")
}
