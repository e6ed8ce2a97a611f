def write_page(found, file):
    pass
