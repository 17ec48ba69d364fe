// Package recipes has answers to common questions as small, tested functions. docs/recipes.md
// explains them. Copy them: they are no part of the library.
package recipes
