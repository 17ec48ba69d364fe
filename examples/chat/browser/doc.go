// Package browser tests the chat example as its users meet it: real server processes on real stores, and its page in a real Chromium.
//
//	make browser      the tests
//	make screenshot   takes the picture of the README anew
package browser
