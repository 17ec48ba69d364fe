package server

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The model's service breaks off in the middle of two answers. The answer is complete, its tool is
// called once, and the question is paid once.
func TestAnswerByService(t *testing.T) {
	pr := serveModel(t, func(n int, w http.ResponseWriter, r *http.Request) {
		switch n {
		case 1, 3:
			emit(w, textEvent("Let me s"))
			dropConn(w)
		case 2:
			emit(w, textEvent("Let me see. ")+callEvent(`{"index":0,"id":"x","function":{"name":"charge_card","arguments":"{\"amount\":7}"}}`)+finishEvent("tool_calls")+doneEvent)
		default:
			emit(w, textEvent("There ")+textEvent("you are.")+finishEvent("stop")+doneEvent)
		}
	})
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	s.model = pr.openAI
	u := visit(t, s.url)
	session := u.newSession(s.url)
	u.ask(s.url, session, "seven credits, please")
	th := u.settled(s.url, session)
	require.Equal(t, done, th.Messages[1].Status)
	require.Equal(t, "There you are.", th.Messages[1].Text)
	require.Equal(t, "Let me see. ", th.Messages[1].Steps[0].Text)
	require.Len(t, pr.keys, 4)
	require.Equal(t, pr.keys[0], pr.keys[1], "a repeated step must have the same key")
	require.Equal(t, pr.keys[2], pr.keys[3])
	require.NotEqual(t, pr.keys[0], pr.keys[2])
	require.EqualValues(t, freeCredits-1+7, get[me](u, s.url+"/api/me").Credits)
	require.NoError(t, s.end(time.Minute))
}

// If the service fails, the turn fails with a reason that hides the key, and its credit is
// returned. The next turn is answered.
func TestServiceFails(t *testing.T) {
	pr := serveModel(t, func(n int, w http.ResponseWriter, r *http.Request) {
		switch {
		case n == 1:
			http.Error(w, `{"error":{"message":"wrong key `+secretKey+`"}}`, http.StatusUnauthorized)
		case n <= 1+modelTries.Attempts:
			emit(w, textEvent("half"))
			dropConn(w)
		default:
			emit(w, textEvent("Hello.")+finishEvent("stop")+doneEvent)
		}
	})
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	s.model = pr.openAI
	u := visit(t, s.url)
	session := u.newSession(s.url)
	for range 3 {
		u.ask(s.url, session, "hello")
	}
	th := u.settled(s.url, session)
	require.Equal(t, []string{failed, failed, done}, []string{th.Messages[1].Status, th.Messages[3].Status, th.Messages[5].Status})
	require.Equal(t, []string{"", "half", "Hello."}, []string{th.Messages[1].Text, th.Messages[3].Text, th.Messages[5].Text})
	require.EqualValues(t, freeCredits-1, get[me](u, s.url+"/api/me").Credits)
	v := u.watch(s.url, th.Messages[1].Turn, func(turnView) bool { return true })
	require.Equal(t, "MODEL_FAILED", v.Error)
	require.NoError(t, s.end(time.Minute))
}
