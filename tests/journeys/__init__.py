"""What a user meets, from outside: commands, HTTP, a browser, files. Nothing here imports the product."""
