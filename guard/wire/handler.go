package wire

import (
	"context"
	"net/http"
)

// A Resource finds what a request is about: the name that its guard is entered
// by. Its error is answered with 400, and its text is shown.
type Resource func(*http.Request) (string, error)

// Handler lets next serve what comes with a token for the request's resource,
// and refuses everything else with a problem, before next sees it; see the
// package's comment. The context of what next serves holds the [*Passage], and
// ends with it.
//
// It does not enter a guard: next does, with the passage, in the transaction or
// the step of the store in which it works.
func Handler(resource Resource, next http.Handler, o *Options) http.Handler {
	options := o.resolve()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, end, err := options.Admit(r.Context(), r.Header.Values(Header), func() (string, error) { return resource(r) })
		if err != nil {
			Refuse(w, err)
			return
		}
		defer end()
		next.ServeHTTP(w, r.WithContext(Enclose(p)))
	})
}

type passageKey struct{}

// Enclose is the passage's context, holding the passage for [From].
func Enclose(p *Passage) context.Context { return context.WithValue(p.Context(), passageKey{}, p) }

// From is the passage of the request that ctx belongs to. It is there in
// whatever [Handler] serves.
func From(ctx context.Context) (*Passage, bool) {
	p, ok := ctx.Value(passageKey{}).(*Passage)
	return p, ok
}
