package cursor_test

import (
	"encoding/base64"
	"testing"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// Parse refuses a text, or returns a position that String and Parse do not change. It refuses the
// position in another kind.
func FuzzParse(f *testing.F) {
	f.Add(cursor.Position{Due: 7, Kind: "order", ID: "a/b"}.String())
	for _, text := range []string{"", "x", `{"d":1e9}`, `{"d":-1,"k":"\u0000","i":"\ud800"}`, `{"k":7}`, `[]`} {
		f.Add(base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := cursor.Parse(persist.Query{After: text})
		if err != nil {
			return
		}
		if again, err := cursor.Parse(persist.Query{After: p.String(), Kind: p.Kind}); err != nil || again != p {
			t.Fatalf("%+v became %+v, %v", p, again, err)
		}
		if _, err := cursor.Parse(persist.Query{After: text, Kind: p.Kind + "s"}); err != cursor.ErrMalformed {
			t.Fatalf("the position in another kind was accepted, with %v", err)
		}
	})
}
