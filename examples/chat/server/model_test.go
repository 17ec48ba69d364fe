package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// askAll returns the whole answer of a model. It asserts that nothing follows an error.
func askAll(t *testing.T, ctx context.Context, m Model, p Prompt) (text string, calls []Call, err error) {
	t.Helper()
	for d, failure := range m.Answer(ctx, p) {
		require.NoError(t, err, "a delta follows an error")
		if err = failure; err != nil {
			assert.Equal(t, Delta{}, d)
		}
		text += d.Text
		if d.Call != nil {
			calls = append(calls, *d.Call)
		}
	}
	return text, calls, err
}

// promptOf returns a prompt with all tools of the local model.
func promptOf(text string) Prompt {
	p := Prompt{Key: "turn-1/0", Messages: []Message{{Role: "user", Text: text}}}
	for _, name := range []string{"charge_card", "send_email", "transfer", "search"} {
		p.Tools = append(p.Tools, Tool{Name: name, Parameters: []byte(`{"type":"object"}`)})
	}
	return p
}

func TestLocalCommands(t *testing.T) {
	for asked, want := range map[string][]string{
		"charge 5":                     {`charge_card {"amount":5}`},
		" Charge  5 ":                  {`charge_card {"amount":5}`},
		"email bob@example.com hi Bob": {`send_email {"text":"hi Bob","to":"bob@example.com"}`},
		"transfer 3 to guest-abcd":     {`transfer {"credits":3,"to":"guest-abcd"}`},
		"search pawl ratchet lease":    {`search {"queries":["pawl","ratchet","lease"]}`},
		"charge 5; charge 5; search x": {`charge_card {"amount":5}`, `charge_card {"amount":5}`, `search {"queries":["x"]}`},
		"charge":                       nil,
		"charge five":                  nil,
		"charge 5 please":              nil,
		"charge 5; and what then":      nil,
		"transfer 3 guest-abcd":        nil,
		"email bob@example.com":        nil,
		";":                            nil,
		"":                             nil,
		"count to nowhere":             nil,
		"count to 1000000000":          nil,
		"what is a ratchet?":           nil,
	} {
		text, calls, err := askAll(t, t.Context(), local{}, promptOf(asked))
		require.NoError(t, err, asked)
		assert.NotEmpty(t, text, asked)
		var got []string
		for _, c := range calls {
			got = append(got, c.Name+" "+c.Args)
		}
		assert.Equal(t, want, got, asked)

		again, sameCalls, _ := askAll(t, t.Context(), local{}, promptOf(asked))
		assert.Equal(t, text, again, "the same prompt must have the same answer")
		assert.Equal(t, calls, sameCalls)
	}

	p := promptOf("charge 5")
	p.Tools = nil
	_, calls, err := askAll(t, t.Context(), local{}, p)
	assert.NoError(t, err)
	assert.Empty(t, calls, "a tool was called that the prompt does not offer")
	_, _, err = askAll(t, t.Context(), local{}, Prompt{})
	assert.NoError(t, err)
}

func TestLocalReportsToolResults(t *testing.T) {
	p := promptOf("charge 5; search x")
	p.Steps = []Step{{Calls: []Call{{ID: "1", Name: "charge_card", Result: "charged 5", Done: true}, {ID: "2", Name: "search", Result: "x is a letter", Done: true}}}}
	text, calls, err := askAll(t, t.Context(), local{}, p)
	require.NoError(t, err)
	assert.Empty(t, calls)
	assert.Contains(t, text, "charge_card: charged 5")
	assert.Contains(t, text, "search: x is a letter")
}

func TestLocalFails(t *testing.T) {
	text, _, err := askAll(t, t.Context(), local{}, promptOf("fail"))
	assert.True(t, pawl.IsNonRetryable(err), "%v", err)
	assert.Empty(t, text)
}

func TestLocalStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, got := time.Now(), 0
		for d, err := range (local{delay: 40 * time.Millisecond}).Answer(t.Context(), promptOf("count to 50")) {
			require.NoError(t, err)
			assert.Equal(t, time.Duration(got)*40*time.Millisecond, time.Since(started), "each word must come after one delay")
			got++
			assert.Equal(t, fmt.Sprint(got), strings.TrimSpace(d.Text))
		}
		assert.Equal(t, 50, got)
	})
}

func TestLocalEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(100*time.Millisecond, func() { cancel(gone) })
		started := time.Now()
		text, _, err := askAll(t, ctx, local{delay: 40 * time.Millisecond}, promptOf("count to 50"))
		assert.ErrorIs(t, err, gone)
		assert.Equal(t, "1 2 3 ", text)
		assert.Equal(t, 100*time.Millisecond, time.Since(started), "the answer must end with its context")
		text, calls, err := askAll(t, ctx, local{}, promptOf("charge 5"))
		assert.ErrorIs(t, err, gone)
		assert.Empty(t, text)
		assert.Empty(t, calls)
	})
	for range (local{}).Answer(t.Context(), promptOf("count to 50")) {
		break // the consumer may stop early
	}
}
