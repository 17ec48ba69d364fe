package document

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/state"
	"github.com/pawl-go/pawl/persist"
)

type profile struct {
	Name string  `json:"name"`
	Home place   `json:"home"`
	Old  []place `json:"old,omitempty"`
}

type place struct {
	City string `json:"city"`
}

var profiles, _ = state.Of(reflect.TypeFor[profile]())

var errPicky = errors.New("picky")

const limit = 1 << 20

// stored returns an alive Doc of version 7.
func stored(doc string) *Doc {
	return Of(persist.Record{Key: key, Version: 7, Born: 3, Updated: now, Now: now, Doc: []byte(doc), Schema: 1, Commits: []string{"x.1"}})
}

// mutate applies fn to a copy of d's state and replaces the state, as a mutation does.
func mutate(t *testing.T, d *Draft, fn func(*profile)) {
	t.Helper()
	from := d.View
	if from == nil && d.Life == Alive {
		var err error
		from, err = Decode(profiles, d.Base.Raw)
		require.NoError(t, err)
	}
	p := &profile{}
	if from != nil {
		*p = *from.State.(*profile)
		require.NoError(t, profiles.Detach(p))
	}
	fn(p)
	d.Replace(from, profiles, p, 0)
}

// Fields that the type does not know are written back, through any number of mutations and commits.
// Proves SCOPE-8.
func TestUnknownFieldsAreKept(t *testing.T) {
	base := stored(`{"name":"ann","age":7,"home":{"city":"A","zip":"1"},"old":[{"city":"B","zip":"2"},{"city":"C","zip":"3"}]}`)
	d := NewDraft(base)
	mutate(t, &d, func(p *profile) { p.Name = "anna" })
	mutate(t, &d, func(p *profile) { p.Home.City, p.Old = "AA", p.Old[1:] })
	_, next, err := d.Write(key, 1, limit)
	require.NoError(t, err)
	require.JSONEq(t, `{"name":"anna","age":7,"home":{"city":"AA","zip":"1"},"old":[{"city":"C","zip":"3"}]}`, string(next.Raw))

	again := NewDraft(next)
	again.Show(next.View())
	mutate(t, &again, func(p *profile) { p.Name = "bob" })
	raw, err := again.Encode(limit)
	require.NoError(t, err)
	require.JSONEq(t, `{"name":"bob","age":7,"home":{"city":"AA","zip":"1"},"old":[{"city":"C","zip":"3"}]}`, string(raw))
}

// A state that no mutation changed is written byte by byte as it was read.
func TestUntouchedStateIsNotEncodedAgain(t *testing.T) {
	const doc = `{ "name": "ann", "age": 7 }`
	base := stored(doc)
	d := NewDraft(base)
	v, err := Decode(profiles, base.Raw)
	require.NoError(t, err)
	require.Nil(t, v.Encoded)
	d.Touch(v)
	raw, err := d.Encode(limit)
	require.NoError(t, err)
	require.Equal(t, doc, string(raw))
	require.Nil(t, v.Encoded, "the view itself never changes")

	mutate(t, &d, func(p *profile) { p.Name = "anna" })
	d.Touch(d.View)
	require.Nil(t, d.View.Encoded, "a later state does not use the document that was read")
	require.NoError(t, d.EncodeNow(limit))
	require.JSONEq(t, `{"name":"anna","age":7,"home":{"city":""}}`, string(d.View.Encoded))
	require.NoError(t, d.EncodeNow(0), "once is enough")
}

// A document above the limit is refused, unless the previous one was at least as large.
// Proves SCOPE-11.
func TestSizeLimit(t *testing.T) {
	large := `{"name":"` + strings.Repeat("x", 100) + `","home":{"city":""}}`
	grow := func(base *Doc, name string) error {
		d := NewDraft(base)
		mutate(t, &d, func(p *profile) { p.Name = name })
		return d.EncodeNow(64)
	}
	rest := len(`{"name":"","home":{"city":""}}`)
	require.NoError(t, grow(stored(`{}`), strings.Repeat("x", 64-rest)))
	require.Equal(t, &SizeError{Limit: 64, Size: 65}, grow(stored(`{}`), strings.Repeat("x", 65-rest)))
	require.Equal(t, &SizeError{Limit: 64, Size: len(large)}, grow(stored(`{}`), strings.Repeat("x", 100)))
	require.NoError(t, grow(stored(large), strings.Repeat("x", 99)), "an oversized document may shrink")
	require.Error(t, grow(stored(large), strings.Repeat("x", 101)))
	require.EqualError(t, &SizeError{Limit: 64, Size: 131}, "document: limit 64 bytes, got 131")
}

// The write of a draft has the version that the commit expects and the state that it makes.
// Proves CAS-5.
func TestWrite(t *testing.T) {
	absent := Of(persist.Record{Version: 4}) // 4 is the floor
	tombstone := Of(persist.Record{Version: 7, Born: 3, Updated: now, Deleted: true, Now: now})
	expired := Of(persist.Record{Version: 7, Born: 3, Updated: now, Expires: now, Now: now})
	alive := stored(`{"name":"ann","home":{"city":""}}`)
	alive.Expires = now.Add(time.Hour)
	view, err := Decode(profiles, alive.Raw)
	require.NoError(t, err)
	lease := &persist.Acquire{Holder: "h", For: time.Minute}
	bob := func(d *Draft) { d.Replace(d.View, profiles, &profile{Name: "bob"}, time.Minute) }
	const doc = `{"name":"bob","home":{"city":""}}`
	recent := []string{"x.1"}
	for _, c := range []struct {
		name      string
		base      *Doc
		mutations func(d *Draft)
		want      persist.Write
		born      uint64
		expires   time.Time
	}{
		{"create", absent, bob, persist.Write{Version: 5, Doc: []byte(doc), TTL: time.Minute}, 5, time.Time{}},
		{"two mutations", absent, func(d *Draft) { bob(d); bob(d) }, persist.Write{Version: 6, Doc: []byte(doc), TTL: time.Minute}, 6, time.Time{}},
		{"create on a tombstone", tombstone, bob, persist.Write{Expected: 7, Gone: true, Version: 8, Doc: []byte(doc), TTL: time.Minute}, 3, time.Time{}},
		{"create on an expired record", expired, bob, persist.Write{Expected: 7, Gone: true, Version: 8, Doc: []byte(doc), TTL: time.Minute}, 3, time.Time{}},
		{"replace", alive, bob, persist.Write{Expected: 7, Version: 8, Doc: []byte(doc), TTL: time.Minute, Recent: recent}, 3, time.Time{}},
		{"delete", alive, (*Draft).Delete, persist.Write{Expected: 7, Version: 8, Deleted: true, Recent: recent}, 3, time.Time{}},
		{"delete, then create again", alive, func(d *Draft) { d.Delete(); bob(d) },
			persist.Write{Expected: 7, Version: 9, Doc: []byte(doc), TTL: time.Minute, EndLease: true, Recent: recent}, 3, time.Time{}},
		{"create, delete, then create again", absent, func(d *Draft) { bob(d); d.Delete(); bob(d) },
			persist.Write{Version: 7, Doc: []byte(doc), TTL: time.Minute}, 7, time.Time{}},
		{"take the lease", alive, func(d *Draft) { d.Touch(view); d.Take(lease) },
			persist.Write{Expected: 7, Version: 8, Doc: alive.Raw, TTL: persist.KeepTTL, Acquire: lease, Recent: recent}, 3, alive.Expires},
		{"renew the expiry, then take the lease", alive, func(d *Draft) { d.Renew(time.Second); d.Touch(view); d.Take(lease) },
			persist.Write{Expected: 7, Version: 8, Doc: alive.Raw, TTL: time.Second, Acquire: lease, Recent: recent}, 3, time.Time{}},
		{"replace, then take the lease", alive, func(d *Draft) { bob(d); d.Touch(d.View); d.Take(lease) },
			persist.Write{Expected: 7, Version: 9, Doc: []byte(doc), TTL: time.Minute, Acquire: lease, Recent: recent}, 3, time.Time{}},
		{"take the lease, then delete", alive, func(d *Draft) { d.Touch(view); d.Take(lease); d.Delete() },
			persist.Write{Expected: 7, Version: 9, Deleted: true, Recent: recent}, 3, time.Time{}},
		{"take the lease, delete, then create again", alive, func(d *Draft) { d.Touch(view); d.Take(lease); d.Delete(); bob(d) },
			persist.Write{Expected: 7, Version: 10, Doc: []byte(doc), TTL: time.Minute, EndLease: true, Recent: recent}, 3, time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewDraft(c.base)
			c.mutations(&d)
			require.False(t, d.Expiry.Renew, "a write is more than a renewal")
			require.EqualValues(t, d.Version-c.base.Version, d.Changed, "each mutation has a version of its own")
			w, next, err := d.Write(key, 1, limit)
			require.NoError(t, err)
			c.want.Key, c.want.Schema = key, 1
			require.Equal(t, c.want, w)
			require.Equal(t, c.want.Version, next.Version)
			require.Equal(t, d.Life, next.Life)
			require.Equal(t, c.born, next.Born)
			require.Equal(t, c.expires, next.Expires)
			if d.Life == Alive {
				require.Equal(t, d.View.State, next.View().State, "the next mutation need not decode it")
			} else {
				require.Nil(t, next.View())
			}
		})
	}
}

// A mutation that changes nothing keeps the version, and may renew the expiry. Proves SCOPE-7.
func TestRenewKeepsVersion(t *testing.T) {
	d := NewDraft(stored(`{}`))
	d.Renew(time.Hour)
	require.Zero(t, d.Changed)
	require.EqualValues(t, 7, d.Version)
	require.Equal(t, Expiry{TTL: time.Hour, Renew: true}, d.Expiry)
}

// A lease is held if the previous mutation took it, or if the record read for these mutations has
// it. Proves STORE-13.
func TestHeldBy(t *testing.T) {
	holding := Holding{Holder: "other", Token: 5, Left: time.Second}
	base := stored(`{}`)
	base.Held = &holding
	d := NewDraft(base)
	_, held := d.HeldBy()
	require.False(t, held, "a base read before the call may be stale")
	d.Fresh = true
	h, held := d.HeldBy()
	require.True(t, held)
	require.Equal(t, holding, h)
	d.Delete()
	_, held = d.HeldBy()
	require.False(t, held, "a delete ends the lease")
	d.Take(&persist.Acquire{Holder: "me", For: time.Minute})
	h, held = d.HeldBy()
	require.True(t, held)
	require.Equal(t, Holding{Holder: "me", Left: time.Minute}, h)
}

// Encoding errors of the state type are returned unchanged.
func TestEncodingFails(t *testing.T) {
	typ, err := state.Of(reflect.TypeFor[picky]())
	require.NoError(t, err)
	d := NewDraft(stored(`{}`))
	d.Replace(nil, typ, &picky{}, 0)
	var refused *state.Error
	require.ErrorAs(t, d.EncodeNow(limit), &refused)
	_, next, err := d.Write(key, 0, limit)
	require.ErrorAs(t, err, &refused)
	require.Nil(t, next)
	_, err = Decode(profiles, []byte(`{"name":7}`))
	require.Error(t, err)
}

// picky is a type that cannot be encoded.
type picky struct{}

func (picky) MarshalJSON() ([]byte, error) { return nil, errPicky }
func (*picky) UnmarshalJSON([]byte) error  { return errPicky }
