package pgproxy

import (
	"regexp"
	"strings"
)

// words decides by its words what a statement does.
type words struct{ writes *regexp.Regexp }

func newWords(writers []string) words {
	pattern := `\b(?:insert|update|delete|merge|truncate)\b`
	for _, name := range writers {
		pattern += `|` + regexp.QuoteMeta(name) + `"?\s*\(`
	}
	return words{writes: regexp.MustCompile(`(?i)` + pattern)}
}

// effect says what a statement does to the transaction.
type effect int

const (
	reads effect = iota
	writes
	begins
	commits
	rollsBack
)

var (
	beginning = regexp.MustCompile(`(?i)^(?:begin|start\s+transaction)\b`)
	ending    = regexp.MustCompile(`(?i)^(?:commit|end)\b`)
	undoing   = regexp.MustCompile(`(?i)^(?:rollback|abort)\b`)
	toSave    = regexp.MustCompile(`(?i)^rollback(?:\s+(?:work|transaction))?\s+to\b`)
	locking   = regexp.MustCompile(`(?i)\bfor\s+(?:no\s+key\s+)?update\b`)

	// noise matches literals and comments, whose words do not count.
	noise = regexp.MustCompile(`(?s)'(?:[^']|'')*'|\$\w*\$.*?\$\w*\$|--[^\n]*|/\*.*?\*/`)
)

// effect returns the effect of one statement without noise.
func (w words) effect(statement string) effect {
	switch {
	case beginning.MatchString(statement):
		return begins
	case ending.MatchString(statement):
		return commits
	case toSave.MatchString(statement):
		return reads
	case undoing.MatchString(statement):
		return rollsBack
	case w.writes.MatchString(locking.ReplaceAllString(statement, "")):
		return writes
	default:
		return reads
	}
}

// split returns the statements of a text, without noise.
func split(text string) []string {
	var statements []string
	for statement := range strings.SplitSeq(noise.ReplaceAllString(text, "''"), ";") {
		if statement = strings.TrimSpace(statement); statement != "" {
			statements = append(statements, statement)
		}
	}
	return statements
}
