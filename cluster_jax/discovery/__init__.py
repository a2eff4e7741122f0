"""Novel class discovery: which images have known classes, and scores of the novel ones."""
