package adk_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"
)

// BenchmarkGet measures the reading of all events of a session, without a store's I/O.
func BenchmarkGet(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b, stores.Memory.New(b), adk.Config{})
			h := create(b, s, "s", nil)
			for i := range n {
				e := event(fmt.Sprint(i), map[string]any{"step": i, "topic": "pawl"})
				e.Content = genai.NewContentFromText(strings.Repeat("All work and no play. ", 20), "model")
				appendTo(b, s, h, e)
			}
			b.ReportAllocs()
			for b.Loop() {
				_, err := s.Get(b.Context(), &session.GetRequest{AppName: appName, UserID: userID, SessionID: "s"})
				require.NoError(b, err)
			}
		})
	}
}
