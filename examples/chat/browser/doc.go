// Package browser tests the chat example end to end: server processes on SQLite, plain files and
// PostgreSQL, and its page in Chromium.
//
//	make browser      run the tests
//	make screenshot   take the picture of docs/chat.md again
package browser
