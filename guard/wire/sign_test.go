package wire_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/wire"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// key returns the same key for each number.
func key(n byte) ed25519.PrivateKey { return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, 32)) }

func public(n byte) ed25519.PublicKey { return key(n).Public().(ed25519.PublicKey) }

func signer(t *testing.T, id string, n byte, o *wire.SignerOptions) *wire.Signer {
	t.Helper()
	s, err := wire.NewSigner(id, key(n), o)
	ok(t, err)
	return s
}

func verifier(t *testing.T, o *wire.VerifierOptions, ids string) *wire.Verifier {
	t.Helper()
	v, err := wire.NewVerifier("bank", keys(ids), o)
	ok(t, err)
	return v
}

// keys returns a key for each letter of ids.
func keys(ids string) map[string]ed25519.PublicKey {
	m := map[string]ed25519.PublicKey{}
	for i := range len(ids) {
		m[ids[i:i+1]] = public(ids[i])
	}
	return m
}

func sign(t *testing.T, s *wire.Signer, c interlock.Claim, audience string) string {
	t.Helper()
	text, err := s.Sign(c, "", audience)
	ok(t, err)
	return text
}

// TestThePublishedVector: the form is that of the specification, so libraries of
// other languages read it. This is its vector 4-S-1.
func TestThePublishedVector(t *testing.T) {
	t.Parallel()
	seed, err := hex.DecodeString("b4cbfb43df4ce210727d953e4a713307fa19bb7d9f85041438d9e11b942a3774")
	ok(t, err)
	const want = "v4.public.eyJkYXRhIjoidGhpcyBpcyBhIHNpZ25lZCBtZXNzYWdlIiwiZXhwIjoiMjAyMi0wMS0wMVQwMDowMDowMCswMDowMCJ9" +
		"bg_XBBzds8lTZShVlwwKSgeKpLT3yukTw6JUz3W4h_ExsQV-P0V54zemZDcAxFaSeef1QlXEFtkqxT1ciiQEDA"
	got := wire.Seal(ed25519.NewKeyFromSeed(seed), `{"data":"this is a signed message","exp":"2022-01-01T00:00:00+00:00"}`, "", "")
	if got != want {
		t.Errorf("sealed\n%s, want\n%s", got, want)
	}
}

func TestSignedTokensAreRead(t *testing.T) {
	t.Parallel()
	text := sign(t, signer(t, "a", 'a', nil), grant(`konto/ä"<`, token(7), time.Hour), "bank")
	p, err := verifier(t, nil, "ab").Verify(text)
	ok(t, err)
	if p.Token != token(7) || p.Resource != `konto/ä"<` || p.Owner != "web-1" || p.Remaining <= 55*time.Second || p.Remaining > wire.DefaultLife {
		t.Errorf("read %+v", p)
	}
	// The longest possible token is accepted.
	big := grant(strings.Repeat("\x01", 512), token(7), time.Hour)
	big.Holder = strings.Repeat("\x02", 1000)
	text, err = signer(t, "a", 'a', nil).Sign(big, "", "bank")
	ok(t, err)
	if p, err = verifier(t, nil, "a").Verify(text); err != nil || p.Resource != big.Resource || len(p.Owner) != wire.MaxOwner {
		t.Errorf("%d bytes: %v", len(text), err)
	}
}

// TestKeysAreRotated: an old key is accepted until it is removed, a new one once it is added, and
// an id is bound to its key.
func TestKeysAreRotated(t *testing.T) {
	t.Parallel()
	old, young := sign(t, signer(t, "a", 'a', nil), grant("r", token(1), bound), "bank"),
		sign(t, signer(t, "b", 'b', nil), grant("r", token(2), bound), "bank")
	v := verifier(t, nil, "")
	for _, step := range []struct {
		keys         string
		old, younger bool
	}{{"a", true, false}, {"ab", true, true}, {"b", false, true}, {"", false, false}} {
		ok(t, v.SetKeys(keys(step.keys)))
		for text, believed := range map[string]bool{old: step.old, young: step.younger} {
			if _, err := v.Verify(text); believed && err != nil {
				t.Errorf("with keys %q: %v", step.keys, err)
			} else if !believed {
				wantReason(t, err, wire.Forged)
			}
		}
	}
	ok(t, v.SetKeys(map[string]ed25519.PublicKey{"a": public('b'), "b": public('a')}))
	for _, text := range []string{old, young} {
		_, err := v.Verify(text)
		wantReason(t, err, wire.Forged)
	}
}

// TestNoByteCanBeChanged: any change of a signed token is rejected, also one that a lenient decoder
// ignores.
func TestNoByteCanBeChanged(t *testing.T) {
	t.Parallel()
	text := sign(t, signer(t, "a", 'a', nil), grant("r", token(1), bound), "bank")
	v := verifier(t, nil, "ab")
	for i := range len(text) {
		for _, c := range []byte("AZaz09-_.=\n") {
			if text[i] == c {
				continue
			}
			if _, err := v.Verify(text[:i] + string(c) + text[i+1:]); err == nil {
				t.Errorf("%q in place of byte %d is taken", c, i)
			}
		}
		for _, changed := range []string{text[:i], text[:i] + "\n" + text[i:], text[:i] + text[i+1:]} {
			if _, err := v.Verify(changed); err == nil {
				t.Errorf("changed at %d it is taken", i)
			}
		}
	}
}

func TestWhatIsSignedForAnotherPurpose(t *testing.T) {
	t.Parallel()
	const message = `{"aud":"bank","iat":"2026-01-01T00:00:00Z","exp":"2026-01-01T00:01:00Z","token":"4096","resource":"r"}`
	at, err := time.Parse(time.RFC3339, "2026-01-01T00:00:30Z")
	ok(t, err)
	v := verifier(t, wire.VerifierOptions{}.At(func() time.Time { return at }), "a")
	if _, err := v.Verify(wire.Seal(key('a'), message, `{"kid":"a"}`, wire.Implicit)); err != nil {
		t.Fatal(err)
	}
	replace := func(old, with string) string { return strings.Replace(message, old, with, 1) }
	for name, c := range map[string]struct {
		message, footer, assertion string
		reason                     wire.Reason
	}{
		"another purpose":             {message, `{"kid":"a"}`, "", wire.Forged},
		"no footer":                   {message, ``, wire.Implicit, wire.Forged},
		"no key":                      {message, `{}`, wire.Implicit, wire.Forged},
		"more in the footer":          {message, `{"kid":"a","alg":"none"}`, wire.Implicit, wire.Forged},
		"two footers":                 {message, `{"kid":"a"}{}`, wire.Implicit, wire.Forged},
		"not JSON":                    {"4096", `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"empty":                       {"", `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"a field not known":           {replace(`"token"`, `"nbf":"x","token"`), `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"it has trailing data":        {message + "{}", `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"a number for a token":        {replace(`"4096"`, `4096`), `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"no token":                    {replace(`"token":"4096",`, ``), `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"no resource":                 {replace(`"r"`, `""`), `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"a resource too long":         {replace(`"r"`, `"`+strings.Repeat("r", 513)+`"`), `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"an audience more":            {replace(`"bank"`, `"bank2"`), `{"kid":"a"}`, wire.Implicit, wire.WrongResource},
		"no audience":                 {replace(`"aud":"bank",`, ``), `{"kid":"a"}`, wire.Implicit, wire.WrongResource},
		"no expiry":                   {replace(`"exp":"2026-01-01T00:01:00Z",`, ``), `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"no beginning":                {replace(`"iat":"2026-01-01T00:00:00Z",`, ``), `{"kid":"a"}`, wire.Implicit, wire.Malformed},
		"an end before the beginning": {replace(`00:01:00Z`, `00:00:00Z`), `{"kid":"a"}`, wire.Implicit, wire.Untimely},
		"a life too long":             {replace(`00:01:00Z`, `00:05:01Z`), `{"kid":"a"}`, wire.Implicit, wire.Untimely},
		"a life of ages":              {replace(`2026-01-01T00:00:00Z`, `0001-01-01T00:00:00Z`), `{"kid":"a"}`, wire.Implicit, wire.Untimely},
	} {
		p, err := v.Verify(wire.Seal(key('a'), c.message, c.footer, c.assertion))
		if r := wantReason(t, err, c.reason); err == nil || r.Reason.Status() >= 500 {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

// TestTimes: a token is valid from its signing until it expires, within the skew of clocks, and
// never longer than its life.
func TestTimes(t *testing.T) {
	t.Parallel()
	signed := time.Now()
	text := sign(t, signer(t, "a", 'a', wire.SignerOptions{Life: 10 * time.Second}.At(func() time.Time { return signed })),
		grant("r", token(1), time.Hour), "bank")
	for _, c := range []struct {
		after, remaining time.Duration // 0: refused
	}{
		{-6 * time.Second, 0}, {-4 * time.Second, 10 * time.Second}, {0, 10 * time.Second}, {4 * time.Second, 10 * time.Second},
		{8 * time.Second, 7 * time.Second}, {14 * time.Second, time.Second}, {16 * time.Second, 0}, {-time.Hour, 0}, {time.Hour, 0},
	} {
		now := signed.Add(c.after)
		p, err := verifier(t, wire.VerifierOptions{Skew: 5 * time.Second}.At(func() time.Time { return now }), "a").Verify(text)
		switch {
		case c.remaining == 0:
			wantReason(t, err, wire.Untimely)
		case err != nil || (p.Remaining-c.remaining).Abs() > 2*time.Millisecond:
			t.Errorf("%v after: %v remain, %v", c.after, p.Remaining, err)
		}
	}
	now := signed.Add(10001 * time.Millisecond)
	_, err := verifier(t, wire.VerifierOptions{Skew: -1}.At(func() time.Time { return now }), "a").Verify(text)
	wantReason(t, err, wire.Untimely)
}

// TestTokensDoNotOutlastTheClaim, whatever the signer's life is.
func TestTokensDoNotOutlastTheClaim(t *testing.T) {
	t.Parallel()
	s, v := signer(t, "a", 'a', wire.SignerOptions{Life: time.Minute}.At(time.Now)), verifier(t, nil, "a")
	p, err := v.Verify(sign(t, s, grant("r", token(1), 3*time.Second), "bank"))
	if ok(t, err); p.Remaining > 3*time.Second {
		t.Errorf("%v remain of 3 s", p.Remaining)
	}
	c := grant("r", token(1), bound)
	c.End(interlock.ErrLost)
	if _, err := s.Sign(c, "", "bank"); !errors.Is(err, interlock.ErrLost) || interlock.Kind(err) != interlock.Definite {
		t.Errorf("signed for a claim that was lost: %v", err)
	}
	_, err = s.Sign(grant("r", ahead(25*time.Hour), bound), "", "bank")
	wantReason(t, err, wire.Implausible)
	_, err = s.Sign(grant(strings.Repeat("r", 513), token(1), bound), "", "bank")
	if !errors.Is(err, interlock.ErrName) {
		t.Errorf("signed for a name that is too long: %v", err)
	}
}

func TestKeysThatAreNone(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 65)
	for _, id := range []string{"", long, "a b", "ä", "a\n"} {
		_, err := wire.NewSigner(id, key(1), nil)
		_, err2 := wire.NewVerifier("bank", map[string]ed25519.PublicKey{id: public(1)}, nil)
		if interlock.Kind(err) != interlock.Bug || interlock.Kind(err2) != interlock.Bug || err == nil || err2 == nil {
			t.Errorf("id %q: %v, %v", id, err, err2)
		}
	}
	for _, k := range [][]byte{nil, make([]byte, 31), make([]byte, 32), make([]byte, 33)} {
		_, err := wire.NewSigner("a", ed25519.PrivateKey(k), nil)
		_, err2 := wire.NewVerifier("bank", map[string]ed25519.PublicKey{"a": k}, nil)
		if err == nil || err2 == nil {
			t.Errorf("a key of %d bytes: %v, %v", len(k), err, err2)
		}
	}
}

// FuzzVerify: no unsigned text is accepted, and every other text yields a refusal.
func FuzzVerify(f *testing.F) {
	s, err := wire.NewSigner("a", key('a'), nil)
	testbed.OK(f, err)
	good, err := s.Sign(grant("r", token(1), time.Hour), "", "bank")
	testbed.OK(f, err)
	v, err := wire.NewVerifier("bank", keys("a"), nil)
	testbed.OK(f, err)
	for _, seed := range []string{good, "v4.public.", "v4.local." + good, "v4.public.e30.e30", "4096;resource=r", strings.ToUpper(good),
		wire.Seal(key('b'), `{"token":"4096"}`, `{"kid":"a"}`, wire.Implicit), wire.Seal(key('a'), `{"token":"1"}`, `{"kid":"a"}`, wire.Implicit)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := v.Verify(text)
		var r *wire.Refusal
		// Another process of the fuzzer may have signed the same at another time.
		signed := text == good || p.Resource == "r" && p.Owner == "web-1"
		if err == nil && !signed || err != nil && (!errors.As(err, &r) || r.Reason.Status() >= 500 || p.Remaining != 0) {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	})
}
