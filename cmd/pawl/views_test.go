package main

import (
	"bufio"
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	core "github.com/pawl-go/pawl"
	flowrun "github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/stream"
)

func TestRuns(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		rt := openRuntime(t, stores.OpenFor(t, location))
		at := []string{"--store", flag(location)}
		require.Empty(t, ok(t, append(at, "runs")...))
		e, runs := newRuns(rt, func(_ context.Context, a *flowrun.Attempt[doc]) (flowrun.Next, error) {
			if a.State.Text == "bad" {
				return flowrun.Next{}, core.NonRetryable(errors.New("fully\x1b[2J booked"))
			}
			return flowrun.Await("ticket", 0), nil
		})
		bad, _, err := runs.Start(t.Context(), doc{"bad"}, flowrun.InWorkspace("ann b"), flowrun.WithKey("k1"))
		require.NoError(t, err)
		good, _, err := runs.Start(t.Context(), doc{"good"})
		require.NoError(t, err)
		require.NoError(t, e.Start(t.Context()))
		for r, err := range runs.Watch(t.Context(), bad.ID) {
			require.NoError(t, err)
			if r.Status.Finished() {
				break
			}
		}
		for r, err := range runs.Watch(t.Context(), good.ID) {
			require.NoError(t, err)
			if r.Status == flowrun.Waiting {
				break
			}
		}
		require.NoError(t, e.Stop(testkit.Within(t, testkit.Patience)))
		require.NoError(t, e.Signal(t.Context(), good.ID, "other", doc{"x"}))

		for flags, want := range map[string][]string{
			"": {bad.ID, good.ID}, "--state failed": {bad.ID}, "--state waiting --state failed": {bad.ID, good.ID}, "--state parked": nil,
			"--definition trip": {bad.ID, good.ID}, "--definition none": nil, "--limit 1": {bad.ID},
		} {
			var ids []string
			for _, r := range lines[map[string]string](t, ok(t, append(append(at, "runs", "--json"), strings.Fields(flags)...)...)) {
				ids = append(ids, r["id"])
				require.Equal(t, "trip", r["definition"])
				require.Equal(t, "book", r["step"])
				require.Equal(t, "0 of 2", r["steps"])
			}
			require.ElementsMatch(t, want, ids, flags)
		}
		require.Contains(t, ok(t, append(at, "runs", "--workspace", "ann b")...), bad.ID)
		table := ok(t, append(at, "runs")...)
		require.Regexp(t, `ID\s+DEFINITION\s+STATUS\s+STEP`, table)
		require.Contains(t, table, "WAITING: ticket")
		require.Contains(t, table, `fully\x1b[2J booked`)

		shown := ok(t, append(at, "runs", bad.ID)...)
		for _, want := range []string{`workspace\s+ann b`, `key\s+k1`, `status\s+FAILED`, `error\s+"fully`, `STEP\s+STATUS\s+ATTEMPTS`, `book\s+FAILED\s+1\s`, `pay\s+PENDING\s+0\s`, `"text": "bad"`} {
			require.Regexp(t, want, shown)
		}
		require.NotContains(t, shown, "\x1b")
		shown = ok(t, append(at, "runs", good.ID)...)
		require.Regexp(t, `awaits\s+ticket`, shown)
		require.Regexp(t, `other\s+0\s+\{"text":"x"\}`, shown)
		one := lines[struct {
			State   string          `json:"state"`
			Signals []waitingSignal `json:"signals"`
		}](t, ok(t, append(at, "runs", good.ID, "--json")...))
		require.Len(t, one, 1)
		require.Equal(t, "alive", one[0].State)
		require.Equal(t, "other", one[0].Signals[0].Name)
		r := pawl(t, append(at, "runs", "default/none")...)
		require.Equal(t, exitNegative, r.code)
	})
}

func TestStreams(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		rt := openRuntime(t, stores.OpenFor(t, location))
		at := []string{"--store", flag(location)}
		log := newLog(t, rt)
		for i, text := range []string{"a", "b", "c", "d\x1b[2J"} {
			_, err := log.Append(stream.WithMeta(t.Context(), stream.Meta{Actor: "ann"}), "ann/1", stream.At(int64(i)-1), doc{text})
			require.NoError(t, err)
		}
		_, err := log.Append(t.Context(), "bob", stream.Any, doc{"x"})
		require.NoError(t, err)
		require.NoError(t, log.Trim(t.Context(), "ann/1", 1))

		list := lines[map[string]string](t, ok(t, append(at, "streams", "--json")...))
		require.Len(t, list, 2)
		require.Equal(t, []string{"ann/1", "4", "1", "open"}, []string{list[0]["id"], list[0]["events"], list[0]["first_kept"], list[0]["state"]})
		require.Contains(t, ok(t, append(at, "streams", "--prefix", "b")...), "bob")
		require.Empty(t, ok(t, append(at, "streams", "--log", "other")...))
		for flags, want := range map[string]string{"": "b c d", "--last 2": "c d", "--from 2": "c d", "--from 0": "b c d", "--from 9": ""} {
			var texts []string
			for _, e := range lines[seenEvent](t, ok(t, append(append(at, "streams", "ann/1", "--json"), strings.Fields(flags)...)...)) {
				require.Equal(t, "said", e.Type)
				require.JSONEq(t, `{"actor":"ann"}`, string(e.Meta))
				require.Equal(t, "ann/1", e.Stream)
				require.NotZero(t, e.At)
				texts = append(texts, string(e.Data)[9:10])
			}
			require.Equal(t, strings.Fields(want), append([]string{}, texts...), flags)
		}
		table := ok(t, append(at, "streams", "ann/1", "--last", "1")...)
		require.Regexp(t, `^3 \S+Z said \{"text":"d\\u001b\[2J"\} \{"actor":"ann"\}\n$`, table)
		r := pawl(t, append(at, "streams", "none")...)
		require.Equal(t, exitNegative, r.code)
		require.Contains(t, r.err, `no stream "none" in the log "stream"`)
	})
}

// A stream is followed from before its first event, past its deletion.
func TestFollowStream(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		rt := openRuntime(t, stores.OpenFor(t, location))
		log := newLog(t, rt)
		w := start(t, "streams", "ann", "--follow", "--store", flag(location))
		w.until("watching stream/ann")
		out := bufio.NewScanner(w.out)
		for life := range 2 {
			for i := range 3 {
				_, err := log.Append(t.Context(), "ann", stream.At(int64(i)-1), doc{strings.Repeat("x", life+1)})
				require.NoError(t, err)
				require.True(t, out.Scan())
				require.Regexp(t, `^`+string(rune('0'+i))+` \S+ said \{"text":"`+strings.Repeat("x", life+1)+`"\}$`, out.Text())
			}
			require.NoError(t, log.DeleteStream(t.Context(), "ann"))
		}
		w.signal(syscall.SIGINT)
		code, _ := w.wait()
		require.Zero(t, code)
	})
}

func TestReactions(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		rt := openRuntime(t, stores.OpenFor(t, location))
		at := []string{"--store", flag(location)}
		require.Empty(t, ok(t, append(at, "reactions")...))
		log := newLog(t, rt)
		require.NoError(t, log.React(stream.Reaction{Name: "mail", Handle: func(context.Context, *stream.Delivery) error { return nil }}))
		require.NoError(t, log.React(stream.Reaction{Name: "bill", Handle: func(context.Context, *stream.Delivery) error {
			return core.NonRetryable(errors.New("no card"))
		}}))
		for _, name := range []string{"ann", "bob"} {
			_, err := log.Append(t.Context(), name, stream.Any, doc{"1"}, doc{"2"})
			require.NoError(t, err)
		}
		require.NoError(t, log.Start(t.Context()))
		testkit.Eventually(t, func() bool {
			settled := 0
			for p, err := range log.Positions(t.Context(), stream.Filter{}) {
				require.NoError(t, err)
				if p.Holder == "" && (p.Blocked || !p.Pending) {
					settled++
				}
			}
			return settled == 4
		})
		require.NoError(t, log.Stop(testkit.Within(t, testkit.Patience)))
		_, err := log.Append(t.Context(), "ann", stream.Any, doc{"3"})
		require.NoError(t, err)

		type row struct{ Reaction, Stream, Lag, State, Reason string }
		for flags, want := range map[string][]row{
			"":              {{"bill", "ann", "3", "blocked", "no card"}, {"mail", "ann", "1", "idle", ""}, {"bill", "bob", "2", "blocked", "no card"}, {"mail", "bob", "0", "idle", ""}},
			"--blocked ann": {{"bill", "ann", "3", "blocked", "no card"}},
			"--limit 1":     {{"bill", "ann", "3", "blocked", "no card"}},
		} {
			require.Equal(t, want, lines[row](t, ok(t, append(append(at, "reactions", "--json"), strings.Fields(flags)...)...)), flags)
		}
		require.Regexp(t, `ID\s+REACTION\s+STREAM\s+NEXT EVENT\s+LAG`, ok(t, append(at, "reactions")...))
	})
}
