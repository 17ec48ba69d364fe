package recipes

import (
	"context"
	"time"

	"github.com/pawl-go/pawl"
)

// GenkitStore keeps the sessions of Genkit. With D = session.Data[State] it is a session.Store[State]
// of github.com/firebase/genkit/go/core/x/session. The last Save of a session wins: keep counters that
// several requests change in a scope of their own.
type GenkitStore[D any] struct {
	Owner pawl.Owner
	Kind  pawl.Kind[D] // such as {Name: "genkit", TTL: 30 * 24 * time.Hour}
}

// Get returns a session, nil if there is none. It returns the errors of pawl.Scope.Snapshot.
func (s GenkitStore[D]) Get(ctx context.Context, id string) (*D, error) {
	snap, err := s.Kind.Scope(s.Owner, id).Snapshot(ctx)
	if err != nil || !snap.Exists() {
		return nil, err
	}
	data := snap.State() // a copy
	return &data, nil
}

// Save keeps a session. It returns the errors of pawl.Scope.SetState.
func (s GenkitStore[D]) Save(ctx context.Context, id string, data *D) error {
	_, err := s.Kind.Scope(s.Owner, id).SetState(ctx, *data)
	return err
}

// Checkpoint is where an interrupted graph of Eino goes on.
type Checkpoint struct {
	Data []byte `json:"data"`
}

// Checkpoints expire a week after they were written.
var Checkpoints = pawl.Kind[Checkpoint]{Name: "checkpoint", TTL: 7 * 24 * time.Hour}

// EinoStore keeps the checkpoints of Eino. It is a compose.CheckPointStore of
// github.com/cloudwego/eino. A checkpoint has at most 768 KiB, unless pawl.Config.MaxDoc is raised.
type EinoStore struct{ Owner pawl.Owner }

// Get returns a checkpoint. It reports false if there is none. It returns the errors of
// pawl.Scope.Snapshot.
func (s EinoStore) Get(ctx context.Context, id string) ([]byte, bool, error) {
	snap, err := Checkpoints.Scope(s.Owner, id).Snapshot(ctx)
	if err != nil || !snap.Exists() {
		return nil, false, err
	}
	return snap.State().Data, true, nil
}

// Set keeps a checkpoint. It returns the errors of pawl.Scope.SetState.
func (s EinoStore) Set(ctx context.Context, id string, checkpoint []byte) error {
	_, err := Checkpoints.Scope(s.Owner, id).SetState(ctx, Checkpoint{Data: checkpoint})
	return err
}
