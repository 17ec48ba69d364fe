package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
)

type diary struct {
	Text  string `json:"text"`
	Pages int    `json:"pages"`
}

// No event and no line of the log has the content of a document, also when calls fail.
func TestNoDocumentsInEvents(t *testing.T) {
	const secret = "open-sesame"
	var mu sync.Mutex // protects events and lines
	var events, lines bytes.Buffer
	handler := slog.NewJSONHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug})
	observe := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(&events, "%+v\n", e)
	})
	rt, err := pawl.Open(pawl.Config{Store: memory.New(), Logger: slog.New(handler), Observer: pawl.Observers(observe, pawl.LogObserver(slog.New(handler)))})
	require.NoError(t, err)
	for _, k := range []pawl.Kind[diary]{{Name: "diary"}, {Name: "draft", InMemory: true, Timeout: 50 * time.Millisecond}} {
		s := k.Scope(rt, "ann")
		_, err := s.SetState(t.Context(), diary{Text: secret})
		require.NoError(t, err)
		_, err = s.PatchState(t.Context(), pawl.Patch{"pages": secret})
		require.Error(t, err)
		_, err = s.PatchState(t.Context(), pawl.Patch{"text": secret}, pawl.IfVersion(99))
		require.Error(t, err)
		_, err = s.PushState(t.Context(), "text", secret)
		require.Error(t, err)
		_, err = s.AtomicState(t.Context(), func(_ context.Context, d *diary) error { d.Text += secret; return errors.New("no") })
		require.Error(t, err)
		_, err = s.AtomicState(t.Context(), func(_ context.Context, d *diary) error { d.Text += secret; return nil })
		require.NoError(t, err)
	}
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := pawl.Kind[diary]{Name: "diary"}.Scope(tx, "bob").SetState(ctx, diary{Text: secret})
		return errors.Join(err, errors.New("no"))
	})
	require.Error(t, err)
	require.NoError(t, rt.Close(t.Context()))
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, events.String(), "diary")
	require.NotContains(t, events.String(), secret)
	require.NotContains(t, lines.String(), secret)
}
