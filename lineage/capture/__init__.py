"""What a session ran with: recipe, source, environment, data, command line; secrets masked at the source."""
