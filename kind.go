package pawl

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/internal/state"
	"github.com/pawl-go/pawl/persist"
)

// Key names a scope: its kind and its id.
type Key = persist.Key

// Limits, the same on every store. Config.MaxDoc limits documents.
const (
	MaxKind   = 64   // bytes of a kind's name
	MaxID     = 255  // bytes of an id
	MaxLabel  = 255  // bytes of the string that a store indexes
	MaxHolder = 255  // bytes of the name of a lease's holder
	MaxScopes = 4096 // scopes in one transaction
	MaxLabels = 4096 // labels in one Query

	MaxDepth  = state.MaxDepth  // lists and objects nested in each other
	MaxDigits = state.MaxDigits // digits of a number, written without an exponent
)

// Doc is dynamic state: any JSON object. Integers in it are int64, or uint64 beyond that; other
// numbers are float64. A number that none of these holds exactly is a json.Number.
type Doc map[string]any

// Field is the JSON name of a field of T, or a dotted path into nested objects. String constants
// convert by themselves; Kind.MustField checks one when the program starts. A dot or backslash that
// belongs to a name is written with a backslash before it.
type Field string

// At returns the path of one entry of the map in f. Key is taken literally, dots included.
func (f Field) At(key string) Field {
	if f == "" {
		return Field(state.Escape(key))
	}
	return f + "." + Field(state.Escape(key))
}

// Kind is a sort of scope: its name, its state type T and its defaults. Declare it once, as a
// package variable, list it in Config.Kinds, and open scopes from it.
type Kind[T any] struct {
	Name     string
	InMemory bool          // never stored; mutations take the lock path
	Label    Field         // the string field that the store indexes, such as a status
	Due      Field         // the time field that workers and List look at
	TTL      time.Duration // a write renews it; 0: never expires
	MaxDoc   int           // bytes of a document; 0, or above Config.MaxDoc: that limit
	Log      bool          // scopes have a log beside the document; see Scope.AppendLog
	Timeout  time.Duration // of an in-memory mutation; 0: the runtime's
	Retry    Retry         // of a persisted mutation; zero fields: the runtime's
	Upgrades []Upgrade     // schema version = len(Upgrades); append only
}

// Upgrade rewrites a document of schema version i into version i+1; i is its index in
// Kind.Upgrades.
type Upgrade func(Doc) error

// AnyKind is a Kind of some type, for Config.Kinds.
type AnyKind interface{ define(*Runtime) error }

// Scope returns a handle on the scope with this id. It does no I/O and cannot fail: a bad id, a
// missing store or a contradictory kind is reported by every verb (*LimitError, ErrNoStore,
// *KindError).
func (k Kind[T]) Scope(o Owner, id string) Scope[T] {
	return Scope[T]{open(o, settings(k), typed[T]{}, id)}
}

// MustField returns path as a Field and panics if T has no such field. It is for package variables,
// like regexp.MustCompile.
func (k Kind[T]) MustField(path string) Field {
	typ, err := typeFor[T]()
	if err == nil {
		err = typ.Check(path)
	}
	if err != nil {
		panic(fmt.Sprintf("pawl: kind %q: MustField: %v", k.Name, err))
	}
	return Field(path)
}

// Query selects scopes for Kind.List; the zero value selects all.
type Query struct {
	Prefix  string        // of the id
	From    string        // the lowest id; empty: no bound
	Before  string        // above the highest id; empty: no bound
	Reverse bool          // from the last to the first
	Labels  []string      // any of these; at most MaxLabels
	Age     time.Duration // last written at least this long ago, by the store's clock
	Due     bool          // due time has come; the longest due first
	Limit   int           // 0: no limit, for Take 1; negative: *ArgumentError
}

// List yields the persisted scopes of this kind that match q, in the order of their ids, byte by
// byte, or with q.Due in the order of their due times. q.Reverse turns the order around. It reads
// page by page. Each page shows the store at one moment; plain files read their folder once.
//
// For a document that this release cannot read it yields a Snapshot that has only its ID, with
// *SchemaError, and goes on; q.Limit does not count it. Every other error is in the last pair:
// ErrNotPersisted for an in-memory kind, ErrInTx on a transaction and ErrOutsideTx inside one (list
// before it, and read again in it), ErrNoStore, *KindError, *ArgumentError, *LimitError,
// *UnavailableError, ErrClosed, or *CanceledError.
func (k Kind[T]) List(ctx context.Context, o Owner, q Query) iter.Seq2[Snapshot[T], error] {
	return func(yield func(Snapshot[T], error) bool) {
		settings(k).list(ctx, o, typed[T]{}, q, func(s snapshot, err error) bool {
			return yield(snapshotOf[T](s), err)
		})
	}
}

// list is Kind.List.
func (k settings) list(ctx context.Context, o Owner, t stateType, q Query, yield func(snapshot, error) bool) {
	b, err := k.listable(ctx, o, t, q)
	if err != nil {
		yield(snapshot{}, err)
		return
	}
	for name, bound := range map[string]string{"Query.From": q.From, "Query.Before": q.Before} {
		if !utf8.ValidString(bound) || strings.Contains(bound, "\x00") {
			yield(snapshot{}, &ArgumentError{Argument: name, Reason: "not UTF-8 without U+0000"})
			return
		}
	}
	page, left := persist.Page{}, q.Limit
	sq := q.stored(k.Name)
	for first := true; first || page.Next != ""; first = false {
		sq.After = page.Next
		if page, err = b.rt.list(ctx, sq); err != nil {
			yield(snapshot{}, storeError(ctx, Key{Kind: k.Name}, err))
			return
		}
		for _, r := range page.Records {
			v, err := b.view(document.Of(r), r.Key)
			if err != nil {
				if !yield(snapshot{id: r.ID}, err) {
					return
				}
				continue
			}
			if !yield(snapshot{id: r.ID, version: r.Version, at: r.Updated, state: v.State}, nil) {
				return
			}
			if left--; left == 0 {
				return
			}
		}
	}
}

// stored returns q in the store's form, without its limit.
func (q Query) stored(kind string) persist.Query {
	return persist.Query{Kind: kind, Prefix: q.Prefix, From: q.From, Before: q.Before, Reverse: q.Reverse, Labels: q.Labels, Age: q.Age, Due: q.Due}
}

// listable returns the binding of k on o, or the reason why its scopes cannot be listed by q.
func (k settings) listable(ctx context.Context, o Owner, t stateType, q Query) (*binding, error) {
	b, err := bind(o, k, t)
	switch {
	case err != nil:
		return nil, err
	case k.InMemory:
		return nil, ErrNotPersisted
	case b.ready(ctx) != nil:
		return nil, b.ready(ctx)
	case o.owner().tx != nil:
		return nil, ErrInTx
	case frameOf(ctx).outerTx() != nil:
		return nil, ErrOutsideTx
	case q.Limit < 0:
		return nil, &ArgumentError{Argument: "Query.Limit", Reason: "negative"}
	case len(q.Labels) > MaxLabels:
		return nil, &LimitError{Scope: Key{Kind: k.Name}, What: "labels", Limit: MaxLabels, Got: len(q.Labels), Reason: "in one query"}
	}
	return b, nil
}

// Wakeups returns a channel that gets a value when any scope of this persisted kind may have
// changed, in this process or in another, until ctx ends. Wake-ups are coalesced, can be spurious,
// and can be missing: a caller that waits for one should also look from time to time. A kind that
// cannot be listed gets none.
func (k Kind[T]) Wakeups(ctx context.Context, o Owner) <-chan struct{} {
	changed := notify.NewSignal()
	bound, err := settings(k).listable(ctx, o, typed[T]{}, Query{})
	if err == nil {
		context.AfterFunc(ctx, bound.rt.hub.ListenKind(k.Name, changed.Set))
	}
	return changed
}

// Names of the built-in kinds. A Kind declared under one of them and listed in Config.Kinds gives
// the short constructor below it its defaults.
const (
	KindRequest   = "request"
	KindSession   = "session"
	KindUser      = "user"
	KindOrg       = "org"
	KindSequencer = "sequencer"
	KindTarget    = "target"
	KindMemory    = "memory"
)

// builtIn maps the names of the built-in kinds to whether they are in memory.
var builtIn = map[string]bool{
	KindRequest: false, KindSession: false, KindUser: false, KindOrg: false,
	KindSequencer: true, KindTarget: true, KindMemory: true,
}

// Request returns the persisted scope of a request.
func Request[T any](o Owner, id string) Scope[T] { return Kind[T]{Name: KindRequest}.Scope(o, id) }

// Session returns the persisted scope of a session.
func Session[T any](o Owner, id string) Scope[T] { return Kind[T]{Name: KindSession}.Scope(o, id) }

// User returns the persisted scope of a user.
func User[T any](o Owner, id string) Scope[T] { return Kind[T]{Name: KindUser}.Scope(o, id) }

// Org returns the persisted scope of an organisation.
func Org[T any](o Owner, id string) Scope[T] { return Kind[T]{Name: KindOrg}.Scope(o, id) }

// Sequencer returns an in-memory scope for work that runs in parallel within a request, such as a
// task board. Open it on a Local so that it ends with the request. The name is that of the model of
// agents that Pawl serves, where a sequencer puts the steps of parallel actions in order.
func Sequencer[T any](o Owner, id string) Scope[T] {
	return Kind[T]{Name: KindSequencer, InMemory: true}.Scope(o, id)
}

// Target returns an in-memory scope for one target of a request, such as a tool call.
// Open it on a Local so that it ends with the request. The name is from the same model as that of
// Sequencer: a target is what one action works on.
func Target[T any](o Owner, id string) Scope[T] {
	return Kind[T]{Name: KindTarget, InMemory: true}.Scope(o, id)
}

// Memory returns an in-memory scope that lives until Delete, its TTL, or the end of its owner.
func Memory[T any](o Owner, id string) Scope[T] {
	return Kind[T]{Name: KindMemory, InMemory: true}.Scope(o, id)
}

// settings are the fields of a Kind. Every Kind[T] converts to settings, because T is not part of
// its fields. Code for settings, and for a stateType in place of T, is compiled once and not for
// every type of state.
type settings Kind[Doc]

// stateType stands for the type of a state, T. It is a typed[T].
type stateType interface {
	reflect() reflect.Type
	// newImage returns an image whose state is a copy of *from, a *T; nil: a zero T.
	newImage(from any) *image
}

// typed is the stateType of T. It has no size, so passing it on costs nothing.
type typed[T any] struct{}

func (typed[T]) reflect() reflect.Type { return reflect.TypeFor[T]() }

// kind is a Kind as a runtime registers it.
type kind struct {
	settings
	bindings sync.Map // reflect.Type → *binding
}

// binding is a kind for one state type.
type binding struct {
	rt       *Runtime
	kind     *kind
	typ      *state.Type
	stateOf  stateType // of typ
	defaults *terms

	// unreadable is set for good when Take finds a document that this type cannot read. From then
	// on Take reads each document before it acquires its lease.
	unreadable atomic.Bool
}

// bare reports whether k has only a name, as in the short constructors. It then stands for the
// registered kind.
func (k settings) bare() bool {
	return k.Label == "" && k.Due == "" && k.TTL == 0 && k.MaxDoc == 0 && !k.Log && k.Timeout == 0 && k.Retry == Retry{} && len(k.Upgrades) == 0
}

// agrees reports whether k and the registered definition can be the same kind.
func (k settings) agrees(with *kind) bool {
	return k.InMemory == with.InMemory && (k.bare() || k.Label == with.Label && k.Due == with.Due && k.TTL == with.TTL && k.MaxDoc == with.MaxDoc && k.Log == with.Log &&
		k.Timeout == with.Timeout && k.Retry == with.Retry && len(k.Upgrades) == len(with.Upgrades))
}

func (k Kind[T]) define(rt *Runtime) error { return settings(k).define(rt, typed[T]{}) }

// define registers k with rt and returns every fault of it.
func (k settings) define(rt *Runtime, t stateType) error {
	err := errors.Join(k.faults(t)...)
	if !k.InMemory && rt.store == nil {
		err = errors.Join(err, fmt.Errorf("%w: kind %q", ErrNoStore, k.Name))
	}
	if known, loaded := rt.kinds.LoadOrStore(k.Name, &kind{settings: k}); loaded && !k.agrees(known.(*kind)) {
		err = errors.Join(err, k.contradiction())
	}
	return err
}

func (k settings) contradiction() error {
	return &KindError{Kind: k.Name, Reason: "defined twice with different settings; declare it once and list it in Config.Kinds"}
}

// faults returns the errors in k by itself.
func (k settings) faults(t stateType) (errs []error) {
	fault := func(format string, args ...any) {
		errs = append(errs, &KindError{Kind: k.Name, Reason: fmt.Sprintf(format, args...)})
	}
	if err := checkName(Key{Kind: k.Name}, "kind", k.Name, MaxKind); err != nil {
		errs = append(errs, err)
	}
	if inMemory, ok := builtIn[k.Name]; ok && inMemory != k.InMemory {
		fault("a built-in kind must have InMemory %v", inMemory)
	}
	if k.InMemory && (k.Label != "" || k.Due != "" || k.MaxDoc != 0 || k.Log || len(k.Upgrades) > 0) {
		fault("Label, Due, MaxDoc, Log and Upgrades need a store, but the kind is in memory")
	}
	if k.MaxDoc < 0 {
		fault("negative MaxDoc")
	}
	if k.TTL < 0 {
		fault("negative TTL")
	}
	if k.Timeout < 0 && k.Timeout != NoTimeout {
		fault("negative Timeout")
	}
	if err := k.Retry.check(); err != nil {
		fault("%v", err)
	}
	for i, u := range k.Upgrades {
		if u == nil {
			fault("upgrade %d is nil", i)
		}
	}
	typ, err := state.Of(t.reflect())
	if err != nil {
		fault("%v", err)
		return errs
	}
	zero := document.NewView(typ, typ.Zero())
	for name, only := range map[string]settings{"Label": {Label: k.Label}, "Due": {Due: k.Due}} {
		f := only.Label + only.Due
		if f == "" {
			continue
		}
		err := typ.Check(string(f))
		if err == nil {
			_, _, err = only.indexed(Key{Kind: k.Name}, zero, nil)
		}
		if err != nil {
			fault("%s: %v", name, err)
		}
	}
	return errs
}

// bind returns the binding of k and t on o's runtime. It checks and registers a kind that is not
// registered yet.
func bind(o Owner, k settings, t stateType) (*binding, error) {
	if o == nil {
		return nil, &ArgumentError{Argument: "owner", Reason: "nil"}
	}
	rt := o.owner().rt
	if rt == nil {
		return nil, &ArgumentError{Argument: "owner", Reason: "nil runtime"}
	}
	known, ok := rt.kinds.Load(k.Name)
	if !ok {
		if err := errors.Join(k.faults(t)...); err != nil {
			return nil, err
		}
		known, _ = rt.kinds.LoadOrStore(k.Name, &kind{settings: k})
	}
	info := known.(*kind)
	if !k.agrees(info) {
		return nil, k.contradiction()
	}
	if b, ok := info.bindings.Load(t.reflect()); ok {
		return b.(*binding), nil
	}
	typ, err := state.Of(t.reflect())
	if err != nil {
		return nil, &KindError{Kind: k.Name, Reason: err.Error()}
	}
	b := &binding{rt: rt, kind: info, typ: typ, stateOf: t, defaults: &terms{env: rt.env, timeout: rt.timeout, retry: info.Retry.Or(rt.retry), ttl: info.TTL, log: info.Log}}
	if b.defaults.maxDoc = rt.env.maxDoc; info.MaxDoc > 0 {
		b.defaults.maxDoc = min(info.MaxDoc, rt.env.maxDoc)
	}
	if info.Timeout != 0 {
		b.defaults.timeout = info.Timeout
	}
	made, _ := info.bindings.LoadOrStore(t.reflect(), b)
	return made.(*binding), nil
}

// checkName checks the name of a kind, an id or a holder against the published limits.
func checkName(key Key, what, name string, limit int) error {
	if len(name) == 0 || len(name) > limit {
		return &LimitError{Scope: key, What: what, Limit: limit, Got: len(name), Reason: fmt.Sprintf("1 to %d bytes", limit)}
	}
	if !utf8.ValidString(name) {
		return &LimitError{Scope: key, What: what, Limit: limit, Got: len(name), Reason: "not valid UTF-8"}
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return &LimitError{Scope: key, What: what, Limit: limit, Got: len(name), Reason: fmt.Sprintf("control character %U", r)}
		}
	}
	return nil
}

var docType, _ = state.Of(reflect.TypeFor[Doc]())

// upgrade rewrites a document of schema version from into the current version.
func (k *settings) upgrade(raw []byte, from int) ([]byte, error) {
	if from >= len(k.Upgrades) {
		return raw, nil
	}
	d := Doc{}
	if _, err := docType.Decode(raw, &d); err != nil {
		return nil, err
	}
	for i := from; i < len(k.Upgrades); i++ {
		if err := k.Upgrades[i](d); err != nil {
			return nil, fmt.Errorf("upgrade from %d to %d: %w", i, i+1, err)
		}
	}
	if _, err := docType.Settle(nil, &d); err != nil {
		return nil, err
	}
	return docType.Encode(&d)
}

// indexed returns the label and the due time of a document, which the store indexes.
func (k *settings) indexed(key Key, v *document.View, raw []byte) (label string, due time.Time, err error) {
	if k.Label != "" {
		value, err := lookup(v, raw, k.Label)
		if err != nil {
			return "", due, err
		}
		if value.Kind() == reflect.String {
			label = value.String()
		} else if value.IsValid() {
			return "", due, &FieldError{Scope: key, Field: k.Label, Reason: "the kind's label is not a string"}
		}
		if len(label) > MaxLabel {
			return "", due, &LimitError{Scope: key, What: "label", Limit: MaxLabel, Got: len(label)}
		}
	}
	if k.Due != "" {
		value, err := lookup(v, raw, k.Due)
		if err != nil {
			return "", due, err
		}
		if !value.IsValid() {
			return label, due, nil
		}
		switch t := value.Interface().(type) {
		case time.Time:
			due = t
		case string:
			if t == "" {
				break
			}
			if due, err = time.Parse(time.RFC3339Nano, t); err != nil {
				return "", due, &FieldError{Scope: key, Field: k.Due, Reason: "the kind's due time is not a time"}
			}
		default:
			return "", due, &FieldError{Scope: key, Field: k.Due, Reason: "the kind's due time is not a time"}
		}
		if year := due.UTC().Year(); year < 1 || year > 9999 {
			return "", due, &FieldError{Scope: key, Field: k.Due, Reason: "the kind's due time is outside the years 1 to 9999"}
		}
	}
	return label, due, nil
}

// lookup finds a field in a decoded document, or, if its type does not know the field, in the
// encoded document. The result is not valid if there is no such field.
func lookup(v *document.View, raw []byte, f Field) (reflect.Value, error) {
	typ, from := v.Type, v.State
	if typ.Check(string(f)) != nil {
		d := Doc{}
		if _, err := docType.Decode(raw, &d); err != nil {
			return reflect.Value{}, err
		}
		typ, from = docType, &d
	}
	found, ok := typ.Lookup(from, string(f))
	if !ok {
		return reflect.Value{}, nil
	}
	value := reflect.ValueOf(found)
	for value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	return value, nil
}
