package recipes

import (
	"context"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// sessionData and sessionStore have the methods and the fields of those of Genkit v1.4.0.
type sessionData[S any] struct {
	ID    string `json:"id"`
	State S      `json:"state,omitempty"`
}

type sessionStore[S any] interface {
	Get(ctx context.Context, sessionID string) (*sessionData[S], error)
	Save(ctx context.Context, sessionID string, data *sessionData[S]) error
}

// checkPointStore has the methods of that of Eino v0.7.36.
type checkPointStore interface {
	Get(ctx context.Context, checkPointID string) ([]byte, bool, error)
	Set(ctx context.Context, checkPointID string, checkPoint []byte) error
}

func TestGenkitStore(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		defer rt.Close(t.Context())
		type data = sessionData[map[string]any]
		var s sessionStore[map[string]any] = GenkitStore[data]{rt, pawl.Kind[data]{Name: "genkit"}}
		got, err := s.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Nil(t, got)
		want := &data{ID: "a", State: map[string]any{"name": "Ann"}}
		require.NoError(t, s.Save(t.Context(), "a", want))
		got, err = s.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, want, got)
		got.State["name"] = "changed"
		again, err := s.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, want, again)
	})
}

func TestEinoStore(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		defer rt.Close(t.Context())
		var s checkPointStore = EinoStore{rt}
		_, ok, err := s.Get(t.Context(), "a")
		require.NoError(t, err)
		require.False(t, ok)
		for _, want := range [][]byte{{0, 1, 255}, []byte("second")} {
			require.NoError(t, s.Set(t.Context(), "a", want))
			got, ok, err := s.Get(t.Context(), "a")
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, want, got)
		}
	})
}
